//! A flow that names an address by itself reaches public ones only, unless the operator allows private targets.

use crate::guard::REMEDY;
use crate::{Guard, Trouble};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

const DEFAULT_PORT: u16 = 5432;

/// Looks hosts up once, and lets the driver use only what was checked.
pub(super) async fn check(config: &mut Config, guard: Guard) -> Result<(), Trouble> {
    let refused = |what: &str| Trouble::permanent(format!("the PostgreSQL server is {what}: {REMEDY}"));
    let hosts = config.get_hosts().to_vec();
    if hosts.iter().any(|host| matches!(host, Host::Unix(_))) && !guard.allows_unix_sockets() {
        return Err(refused("at a Unix socket, which flows may not connect to"));
    }
    if guard != Guard::Public {
        return Ok(());
    }
    if !config.get_hostaddrs().is_empty() {
        let found = config.get_hostaddrs().iter().find_map(|address| guard.check(*address).err());
        return found.map_or(Ok(()), |kind| Err(refused(&format!("at {kind}, which flows may not connect to"))));
    }
    if hosts.is_empty() {
        return Err(refused("on this machine, which flows may not connect to"));
    }
    for (place, host) in hosts.iter().enumerate() {
        let Host::Tcp(host) = host else { continue };
        let ports = config.get_ports();
        let port = ports.get(place).or(ports.first()).copied().unwrap_or(DEFAULT_PORT);
        // One address for each host: the driver wants as many of these as there are hosts.
        if let Some(first) = guard.resolve(host, port).await?.first() {
            config.hostaddr(first.ip());
        }
    }
    Ok(())
}
