//! Evaluates a jq program for batches of records: see `everbeat_flows::jq::serve`.

fn main() -> std::io::Result<()> {
    everbeat_flows::jq::serve()
}
