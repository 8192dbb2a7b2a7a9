use crate::config::Telemetry;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// The server's log goes to stderr, one line an event.
pub(crate) fn start(telemetry: &Telemetry) {
    let filter = EnvFilter::try_new(&telemetry.log).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let colour = std::io::stderr().is_terminal() && !crate::term::no_color();
    let _another_logger_is_already_set = match telemetry.json {
        true => builder.json().flatten_event(true).try_init(),
        false => builder.with_ansi(colour).try_init(),
    };
    everbeat_engine::pools::tell(telemetry.heartbeat_events, telemetry.process_events, telemetry.watchdog_events);
}
