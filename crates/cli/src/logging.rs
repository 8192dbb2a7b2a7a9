use crate::config::Telemetry;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// The server's log goes to stderr, one line an event.
pub(crate) fn start(telemetry: &Telemetry) {
    // The client of NATS tells each connection it makes; whoever wants that says so for it alone.
    let wanted = format!("async_nats=warn,{}", telemetry.log);
    let filter = EnvFilter::try_new(wanted).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let colour = std::io::stderr().is_terminal() && !crate::term::no_color();
    let _another_logger_is_already_set = match telemetry.json {
        true => builder.json().flatten_event(true).try_init(),
        false => builder.with_ansi(colour).try_init(),
    };
    everbeat_engine::pools::tell(telemetry.heartbeat_events, telemetry.process_events, telemetry.watchdog_events);
}
