use super::meter::{Allowance, Meter};
use crate::dial::{dial, dial_unix, tls};
use crate::target::decoded;
use crate::timely::within;
use crate::{Target, Trouble, shown};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisConnectionInfo, RedisError, RedisResult, Value};
use std::pin::Pin;
use std::time::Duration;
use url::Url;

pub(super) const SCHEMES: &[&str] = &["redis", "rediss", "unix"];
const DEFAULT_PORT: u16 = 6379;
/// A server that takes longer is away, or hangs.
const LONGEST_ANSWER: Duration = Duration::from_secs(30);

/// Longer messages of a server are cut.
const MOST_SAID: usize = 200;

type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection to a Redis server. Nothing of it goes on in the background: it moves while somebody asks.
pub(super) struct Link {
    connection: MultiplexedConnection,
    /// Carries requests and answers. None when it has ended.
    driver: Option<Driver>,
    allowance: Allowance,
    shown: String,
}

impl Link {
    pub(super) async fn open(target: &Target) -> Result<Link, Trouble> {
        let url = target.url(SCHEMES)?;
        let shown = shown(url.as_str());
        let stream = match url.scheme() {
            "unix" => dial_unix(&decoded(url.path())).await?,
            scheme => {
                let tls = if scheme == "rediss" { Some(tls(target.ca())?) } else { None };
                let host = url.host_str().unwrap_or_default();
                dial(target.guard(), host, url.port().unwrap_or(DEFAULT_PORT), tls.as_ref()).await?
            }
        };
        let (stream, allowance) = Meter::new(stream);
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let info = login(&url)?;
        let opening = MultiplexedConnection::new_with_config(&info, stream, config);
        match within(LONGEST_ANSWER, opening).await {
            Some(Ok((connection, driver))) => Ok(Link { connection, driver: Some(Box::pin(driver)), allowance, shown }),
            Some(Err(error)) => Err(trouble(&shown, &error)),
            None => Err(no_answer(&shown)),
        }
    }

    /// All answers, or the first error. Dropping the future leaves it open whether the server has done what was asked.
    pub(super) async fn ask_all(&mut self, commands: &Pipeline) -> Result<Vec<Value>, Trouble> {
        self.allowance.renew();
        let answers = commands.query_async::<Vec<Value>>(&mut self.connection);
        carry(&mut self.driver, &self.shown, answers).await?.map_err(|error| trouble(&self.shown, &error))
    }

    pub(super) async fn ask(&mut self, command: &Cmd) -> Result<Value, Trouble> {
        self.allowance.renew();
        let answer = command.query_async::<Value>(&mut self.connection);
        carry(&mut self.driver, &self.shown, answer).await?.map_err(|error| trouble(&self.shown, &error))
    }

    /// Like `ask`; an error of this code is as good as an answer.
    pub(super) async fn ask_unless(&mut self, code: &str, command: &Cmd) -> Result<(), Trouble> {
        self.allowance.renew();
        let answer = command.query_async::<Value>(&mut self.connection);
        match carry(&mut self.driver, &self.shown, answer).await? {
            Err(error) if error.code() != Some(code) => Err(trouble(&self.shown, &error)),
            _ => Ok(()),
        }
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }
}

/// Lets the connection move until the answer is there.
async fn carry<T>(
    driver: &mut Option<Driver>,
    shown: &str,
    answer: impl Future<Output = RedisResult<T>>,
) -> Result<RedisResult<T>, Trouble> {
    let answered = within(LONGEST_ANSWER, async {
        tokio::pin!(answer);
        loop {
            let Some(driving) = driver.as_mut() else { return answer.await };
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                () = driving => *driver = None,
            }
        }
    });
    answered.await.ok_or_else(|| no_answer(shown))
}

/// Who logs in where: `redis://user:password@host/database`, or the query of a Unix socket's path.
fn login(url: &Url) -> Result<RedisConnectionInfo, Trouble> {
    let query = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    let unix = url.scheme() == "unix";
    let database = if unix { query("db") } else { Some(url.path().trim_matches('/').to_string()) };
    let mut info = RedisConnectionInfo::default().set_skip_set_lib_name();
    match database.as_deref().unwrap_or_default() {
        "" => {}
        text => match text.parse::<i64>() {
            Ok(number) if number >= 0 => info = info.set_db(number),
            _ => {
                let shown = shown(url.as_str());
                return Err(Trouble::permanent(format!(
                    "{shown}: {text:?} is not the number of a database: use 0 to 15"
                )));
            }
        },
    }
    let user = if unix { query("user") } else { Some(decoded(url.username())) };
    let password = if unix { query("pass") } else { url.password().map(decoded) };
    if let Some(user) = user.filter(|user| !user.is_empty() && password.is_some()) {
        info = info.set_username(user);
    }
    if let Some(password) = password {
        info = info.set_password(password);
    }
    Ok(info)
}

fn no_answer(shown: &str) -> Trouble {
    Trouble::transient(format!("Redis at {shown} gave no answer within {} s", LONGEST_ANSWER.as_secs()))
}

/// What the server, or the way to it, says.
fn trouble(shown: &str, error: &RedisError) -> Trouble {
    let server = error.clone().into_server_errors();
    let first = server.as_ref().and_then(|errors| errors.first()).map(|(_, error)| error);
    let code = first.map_or(error.code().unwrap_or_default(), |error| error.code());
    let said = match first.map_or(error.detail(), |error| error.details()) {
        Some(detail) if !code.is_empty() => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    let said: String = said.chars().take(MOST_SAID).collect();
    match remedy(error.kind(), code, &said) {
        None => Trouble::transient(format!("Redis at {shown}: {said}")),
        Some(remedy) => Trouble::permanent(format!("Redis at {shown}: {said}: {remedy}")),
    }
}

/// What to do; nothing where trying again may help.
fn remedy(kind: ErrorKind, code: &str, said: &str) -> Option<&'static str> {
    match (code, kind) {
        // Somebody removed the group or the stream: the next attempt makes it again.
        ("NOGROUP", _) => None,
        ("LOADING" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "READONLY", _) => None,
        ("OOM" | "BUSY" | "MISCONF" | "NOREPLICAS", _) => None,
        ("NOAUTH" | "WRONGPASS", _) | (_, ErrorKind::AuthenticationFailed) => Some("check user and password"),
        ("NOPERM", _) => Some("allow the user what the message names"),
        ("MOVED" | "ASK" | "CROSSSLOT", _) => Some("name the node of the cluster that holds the stream"),
        ("WRONGTYPE", _) => Some("name the key of a stream"),
        (_, ErrorKind::Io) => None,
        (_, ErrorKind::Parse | ErrorKind::UnexpectedReturnType) => Some("is there a Redis server at this address?"),
        _ if said.contains("unknown command") => Some("use Redis 6.2 or newer"),
        _ if said.contains("max number of clients") => None,
        _ => Some("change what the message names"),
    }
}
