//! Hints between servers: NOTIFY and LISTEN on a connection of their own, outside of any work. NOTIFY
//! takes a lock of the whole server at commit, so there are few of them.

use super::Postgres;
use super::fault::{Fault, Outcome};
use super::link::{Role, Target, within};
use everbeat_store::{Obstacle, WakeSignal, Wakes};
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio_postgres::{AsyncMessage, Client};
use uuid::Uuid;

/// The first hint goes out at once; those that follow within this time go out as one.
const HINT_INTERVAL: Duration = Duration::from_millis(50);

const RECONNECT_DELAY: Duration = Duration::from_secs(1);

pub(super) struct Hints {
    wakes: watch::Sender<u64>,
    outgoing: Arc<Notify>,
    task: AbortHandle,
}

impl Wakes for Postgres {
    fn wake(&self) {
        wake_local(&self.hints.wakes);
        self.hints.outgoing.notify_one();
    }

    fn wakes(&self) -> WakeSignal {
        WakeSignal::new(self.hints.wakes.subscribe())
    }
}

impl Hints {
    #[allow(clippy::disallowed_methods, reason = "owned by the store and aborted with it")]
    pub(super) fn start(target: Arc<Target>) -> Hints {
        let wakes = watch::Sender::new(0);
        let outgoing = Arc::new(Notify::new());
        let task = tokio::spawn(keep_connected(target, wakes.clone(), outgoing.clone())).abort_handle();
        Hints { wakes, outgoing, task }
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn wake_local(wakes: &watch::Sender<u64>) {
    wakes.send_modify(|wakes| *wakes = wakes.wrapping_add(1));
}

async fn keep_connected(target: Arc<Target>, wakes: watch::Sender<u64>, outgoing: Arc<Notify>) {
    // This server's own hints come back; they have been heard already.
    let me = Uuid::new_v4().to_string();
    loop {
        if let Err(fault) = exchange(&target, &wakes, &outgoing, &me).await {
            tracing::debug!(?fault, "the connection for hints was lost; polling goes on");
        }
        pause(RECONNECT_DELAY).await;
    }
}

async fn exchange(target: &Target, wakes: &watch::Sender<u64>, outgoing: &Notify, me: &str) -> Outcome<()> {
    let (client, mut connection) = target.open(Role::Hint).await?;
    let listen = async {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(hint))) if hint.payload() != me => wake_local(wakes),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Fault::from(error)),
                None => {
                    return Err(Fault::Unavailable(
                        Obstacle::Unreachable,
                        "the server closed the connection".to_string(),
                    ));
                }
            }
        }
    };
    let speak = async {
        let listen = format!("{} listen {}", target.setup(Role::Hint), target.schema);
        within(target.call_timeout(Role::Hint), client.batch_execute(&listen)).await??;
        // What was said meanwhile was missed.
        wake_local(wakes);
        loop {
            outgoing.notified().await;
            within(target.call_timeout(Role::Hint), notify(&client, &target.schema, me)).await??;
            pause(HINT_INTERVAL).await;
        }
    };
    tokio::select! {
        biased;
        ended = listen => ended,
        ended = speak => ended,
    }
}

async fn notify(client: &Client, channel: &str, me: &str) -> Outcome<()> {
    client.execute("select pg_notify($1, $2)", &[&channel, &me]).await?;
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "paces a real connection; the simulation never comes here")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
