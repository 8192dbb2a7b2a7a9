use super::address::Address;
use super::{fault, guard as guarded, tls};
use crate::{Guard, Trouble};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio_postgres::Client;

const CONNECT: Duration = Duration::from_secs(10);
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_RETRIES: u32 = 3;
/// What is sent and not acknowledged for so long has broken the connection.
const UNANSWERED: Duration = Duration::from_secs(60);

/// Texts of cells are alike on every server.
const SETUP: &str = "set client_min_messages to warning; set datestyle to 'ISO, YMD'; set timezone to 'UTC'; \
                     set bytea_output to 'hex'; set intervalstyle to 'iso_8601'; set extra_float_digits to 1; \
                     set jit to off; set synchronize_seqscans to off;";

/// A connection. Its end ends the session.
pub(super) struct Link {
    pub(super) client: Client,
    driver: AbortHandle,
}

impl Link {
    pub(super) async fn open(url: &str, guard: Guard, setup: &str) -> Result<Link, Trouble> {
        let Address { mut config, root_certificates } = Address::read(url)?;
        guarded::check(&mut config, guard).await?;
        config
            .application_name("everbeat flow")
            .connect_timeout(CONNECT)
            .keepalives(true)
            .keepalives_idle(KEEPALIVE_IDLE)
            .keepalives_interval(KEEPALIVE_INTERVAL)
            .keepalives_retries(KEEPALIVE_RETRIES)
            .tcp_user_timeout(UNANSWERED);
        let tls = tls::connector(config.get_ssl_mode(), root_certificates.as_deref())?;
        let (client, connection) = config.connect(tls).await.map_err(|error| fault::trouble(&error))?;
        #[allow(clippy::disallowed_methods, reason = "the link owns the task, and ends it")]
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of a flow to PostgreSQL ended");
            }
        });
        let link = Link { client, driver: driver.abort_handle() };
        link.client.batch_execute(&format!("{SETUP}{setup}")).await.map_err(|error| fault::trouble(&error))?;
        Ok(link)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
