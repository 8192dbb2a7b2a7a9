//! Files as sources and sinks.

mod support;

use everbeat_flows::{Counts, Halt, Stop, run};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use support::{Memory, attempt, configure, failure, lines, numbered, once, once_as, refusal};

fn flow(source: &Path, sink: &Path) -> Value {
    json!({"source": {"type": "file", "path": source}, "sink": {"type": "file", "path": sink}})
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn counts(read: u64, written: u64, rejected: u64) -> Counts {
    Counts { read, written, rejected, ..Counts::default() }
}

#[tokio::test]
async fn every_bad_line_is_rejected_with_its_place_and_the_flow_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (source, sink) = (folder.path().join("in.ndjson"), folder.path().join("out.ndjson"));
    let large = json!({"id": 2, "field": "x".repeat(1 << 20)}).to_string();
    let mut bytes = format!("{{\"id\":1}}\nnot json\n{large}\n{{\"id\":3,\n").into_bytes();
    bytes.extend_from_slice(b"{\"id\":\"\xff\xfe\"}\n\n");
    bytes.extend_from_slice(format!("\"{}\"\n{{\"id\":4}}", "y".repeat(5 << 20)).as_bytes());
    fs::write(&source, bytes).unwrap();
    let report = once(&flow(&source, &sink)).await.unwrap();
    assert_eq!(report.counts, counts(7, 3, 4));
    let written = lines(&sink);
    assert_eq!(written.iter().map(|line| line["id"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!(written[1]["field"].as_str().unwrap().len(), 1 << 20);
    let said: Vec<(String, &str)> = report
        .rejected
        .iter()
        .map(|rejected| (rejected.position.rsplit('/').next().unwrap().to_string(), rejected.reason.as_str()))
        .collect();
    let places: Vec<&str> = said.iter().map(|(place, _)| place.as_str()).collect();
    assert_eq!(places, ["in.ndjson:2", "in.ndjson:4", "in.ndjson:5", "in.ndjson:7"]);
    for (reason, part) in
        said.iter().map(|(_, reason)| reason).zip(["not JSON", "not JSON", "not UTF-8", "longer than"])
    {
        assert!(reason.contains(part), "{reason}");
    }
}

#[tokio::test]
async fn csv_becomes_records_of_types_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let (source, sink) = (folder.path().join("in.csv"), folder.path().join("out.csv"));
    fs::write(&source, "id,name,price,tags\n1,\"a, b\",1.5,\"[1]\"\n2,short\n3,c,much,[]\n4,d,,\n").unwrap();
    let types = json!({"id": "integer", "price": "number", "tags": "json"});
    let value =
        json!({"source": {"type": "file", "path": source, "types": types}, "sink": {"type": "file", "path": sink}});
    let report = once(&value).await.unwrap();
    assert_eq!(report.counts, counts(4, 2, 2));
    assert_eq!(report.rejected[0].reason, "has 2 fields where the header has 4");
    assert_eq!(report.rejected[1].reason, "column \"price\" is not a number");
    assert_eq!(fs::read_to_string(&sink).unwrap(), "id,name,price,tags\n1,\"a, b\",1.5,[1]\n4,d,,\n");
    // Another run appends under the same header, and refuses what does not fit under it.
    fs::write(&source, "id,other,name,price,tags\n5,x,e,2,[]\n").unwrap();
    let report = once_as(&value, "run-2").await.unwrap();
    assert!(report.rejected[0].reason.contains("\"other\", which is not a column"), "{:?}", report.rejected);
}

#[tokio::test]
async fn a_pattern_names_files_in_order_and_each_may_be_packed() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("b.ndjson.gz", &gzip(b"{\"id\":3}\n"));
    write("a.ndjson", b"{\"id\":1}\n{\"id\":2}");
    write("c.ndjson.zst", &zstd::stream::encode_all(&b"{\"id\":4}\n"[..], 3).unwrap());
    write("d.txt", b"ignored");
    for name in ["out.ndjson", "out.ndjson.gz", "out.ndjson.zst"] {
        let target = tempfile::tempdir().unwrap();
        let sink = target.path().join(name);
        let value = json!({"source": {"type": "file", "path": folder.path().join("*.ndjson*")},
            "sink": {"type": "file", "path": sink}, "batch_size": 1});
        assert_eq!(once(&value).await.unwrap().counts, counts(4, 4, 0));
        let again = target.path().join("again.ndjson");
        once(&flow(&sink, &again)).await.unwrap();
        assert_eq!(lines(&again), [json!({"id": 1}), json!({"id": 2}), json!({"id": 3}), json!({"id": 4})], "{name}");
    }
}

#[tokio::test]
async fn a_packed_file_that_is_cut_off_loses_its_tail_only_and_says_so() {
    let text = numbered(2000);
    for (name, packed) in [
        ("in.ndjson.gz", gzip(text.as_bytes())),
        ("in.ndjson.zst", zstd::stream::encode_all(text.as_bytes(), 3).unwrap()),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (source, sink) = (folder.path().join(name), folder.path().join("out.ndjson"));
        fs::write(&source, &packed[..packed.len() - 20]).unwrap();
        let report = once(&flow(&source, &sink)).await.unwrap();
        assert_eq!(report.counts.rejected, 1, "{name}");
        let reason = &report.rejected[0].reason;
        assert!(reason.contains("cut off") || reason.contains("damaged"), "{reason}");
        let written = lines(&sink);
        assert_eq!(written.len() as u64, report.counts.written);
        let place = report.rejected[0].position.rsplit(':').next().unwrap().parse::<usize>().unwrap();
        assert_eq!(place, written.len() + 1, "{name}");
    }
}

#[tokio::test]
async fn only_what_is_new_is_read_where_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let sink = folder.path().join("out.ndjson");
    let value = json!({"source": {"type": "file", "path": folder.path().join("*.log"), "format": "ndjson", "read": "new"},
        "sink": {"type": "file", "path": sink}});
    let log = folder.path().join("a.log");
    let append = |text: &str| {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(&log).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    let mut runs = 0;
    let mut read = async || {
        runs += 1;
        once_as(&value, &format!("run-{runs}")).await.unwrap().counts.read
    };
    append("1\n2\n3");
    assert_eq!(read().await, 2, "the third line is not finished");
    assert_eq!(read().await, 0);
    append("3\n4\n");
    assert_eq!(read().await, 2);
    // It is rotated: under its other name it is still known, and the new one is new.
    fs::rename(&log, folder.path().join("a.1.log")).unwrap();
    append("5\n");
    assert_eq!(read().await, 1);
    // The same, but its other name comes after the new one's.
    fs::rename(&log, folder.path().join("b.log")).unwrap();
    append("55\n");
    assert_eq!(read().await, 1);
    assert_eq!(read().await, 0);
    // Another file takes its place.
    fs::remove_file(&log).unwrap();
    fs::write(folder.path().join("keeps-the-number"), "").unwrap();
    append("6\n7\n");
    assert_eq!(read().await, 2);
    assert_eq!(lines(&sink), [1, 2, 33, 4, 5, 55, 6, 7].map(Value::from));
}

#[tokio::test]
async fn a_run_killed_at_any_step_is_resumed_and_writes_each_line_once() {
    for polls in 1.. {
        let folder = tempfile::tempdir().unwrap();
        let (source, sink) = (folder.path().join("in.ndjson"), folder.path().join("out.ndjson.gz"));
        // Many batches: a thread that is quick enough lets a poll see its answer at once, which is one step less.
        fs::write(&source, numbered(40)).unwrap();
        let mut value = flow(&source, &sink);
        value["batch_size"] = json!(2);
        let (configuration, ledger) = (configure(&value), Memory::default());
        let first = support::killed_after(polls, run(&attempt(&configuration, "run-1", 1, &ledger))).await;
        let report = match &first {
            Some(report) => report.clone(),
            None => run(&attempt(&configuration, "run-1", 2, &ledger)).await,
        };
        assert_eq!(report.unwrap().counts, counts(40, 40, 0), "killed after {polls} polls");
        let again = folder.path().join("again.ndjson");
        once(&flow(&sink, &again)).await.unwrap();
        let ids: Vec<u64> = lines(&again).iter().map(|line| line["id"].as_u64().unwrap()).collect();
        assert_eq!(ids, (1..=40).collect::<Vec<u64>>(), "killed after {polls} polls");
        if first.is_some() {
            assert!(polls > 10, "it had no steps to be killed at");
            break;
        }
    }
}

#[tokio::test]
async fn a_former_attempt_cannot_write_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let configuration = configure(&flow(&folder.path().join("in.ndjson"), &folder.path().join("out.ndjson")));
    let record = |id: u64| vec![everbeat_flows::Record { value: json!({"id": id}), position: "x".into() }];
    let mut former = configuration.sink.open(&support::around("run-1", 1)).await.unwrap();
    former.write(record(1), &json!({"cursor": 1})).await.unwrap();
    let mut later = configuration.sink.open(&support::around("run-1", 2)).await.unwrap();
    let trouble = former.write(record(2), &json!({"cursor": 2})).await.expect_err("fenced");
    assert_eq!(trouble.class, everbeat_flows::Class::Fenced);
    let trouble = configuration.sink.open(&support::around("run-1", 1)).await.err().expect("fenced");
    assert_eq!(trouble.class, everbeat_flows::Class::Fenced);
    later.write(record(3), &json!({"cursor": 3})).await.unwrap();
    assert_eq!(lines(&folder.path().join("out.ndjson")), [json!({"id": 1}), json!({"id": 3})]);
}

#[tokio::test]
async fn an_attempt_stops_between_batches_and_the_next_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (source, sink) = (folder.path().join("in.ndjson"), folder.path().join("out.ndjson"));
    fs::write(&source, numbered(5)).unwrap();
    let (configuration, ledger) = (configure(&flow(&source, &sink)), Memory::default());
    *ledger.stop.lock().unwrap() = Some(Stop::Draining);
    let halted = run(&attempt(&configuration, "run-1", 1, &ledger)).await;
    assert_eq!(halted, Err(Halt::Stopped(Stop::Draining)));
    *ledger.stop.lock().unwrap() = None;
    assert_eq!(run(&attempt(&configuration, "run-1", 2, &ledger)).await.unwrap().counts, counts(5, 5, 0));
    assert_eq!(ledger.commits.lock().unwrap().last(), Some(&counts(5, 5, 0)));
}

#[tokio::test]
async fn rejected_records_go_to_the_dead_letters_and_too_many_fail_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("in.ndjson"), "1\nbad\n2\nworse\n").unwrap();
    let mut value = flow(&path("in.ndjson"), &path("out.ndjson"));
    value["dead_letter"] = json!({"type": "file", "path": path("dead.ndjson")});
    let report = once(&value).await.unwrap();
    assert_eq!((report.counts, report.rejected.len()), (counts(4, 2, 2), 0));
    let letters = lines(&path("dead.ndjson"));
    assert_eq!(
        (&letters[0]["raw"], &letters[0]["flow"], &letters[1]["raw"]),
        (&json!("bad"), &json!("orders"), &json!("worse"))
    );
    assert!(letters[0]["reason"].as_str().unwrap().contains("not JSON"));
    assert!(letters[1]["position"].as_str().unwrap().ends_with("in.ndjson:4"));
    for (limit, fails) in [(json!(1), true), (json!(2), false), (json!("49%"), true), (json!("50%"), false)] {
        let mut value = flow(&path("in.ndjson"), &path("other.ndjson"));
        value["max_rejected"] = limit.clone();
        match once_as(&value, &limit.to_string()).await {
            Err(Halt::Failed(trouble)) => {
                assert!(fails && trouble.message.contains("2 of 4 records were rejected"), "{limit}: {trouble}");
            }
            ended => assert!(!fails && ended.is_ok(), "{limit}: {ended:?}"),
        }
    }
}

#[tokio::test]
async fn a_dry_run_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (source, sink) = (folder.path().join("in.ndjson"), folder.path().join("out.ndjson"));
    fs::write(&source, format!("bad\n{}", numbered(10))).unwrap();
    let mut value = flow(&source, &sink);
    value["transform"] = json!({"type": "drop", "fields": ["name"]});
    let configuration = configure(&value);
    let (ports, now) = (everbeat_flows::Ports::default(), everbeat_model::StoreTime(0));
    let dry = everbeat_flows::dry_run(&configuration, &support::around("dry", 1), &ports, 3, now).await.unwrap();
    assert_eq!(dry.records, [json!({"id": 1}), json!({"id": 2})]);
    assert_eq!((dry.read, dry.rejected.len()), (3, 1));
    assert!(!sink.exists());
}

#[tokio::test]
async fn what_cannot_work_is_said_before_or_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let (source, sink) = (folder.path().join("in.ndjson"), folder.path().join("out.ndjson"));
    assert!(failure(&flow(&source, &sink)).await.contains("does not exist"));
    fs::write(&source, "1\n").unwrap();
    let said = failure(&flow(&source, &folder.path().join("no/out.ndjson"))).await;
    assert!(said.contains("the folder") && said.contains("create it first"), "{said}");
    for (end, value, part) in [
        ("source", json!({"type": "fiel", "path": "a.csv"}), "did you mean \"file\""),
        ("source", json!({"type": "file", "path": "a.csv", "formt": "csv"}), "did you mean format"),
        ("source", json!({"type": "file", "path": "a.dat"}), "does not tell the format"),
        ("source", json!({"type": "file", "path": "a.csv", "types": {"a": "date"}}), "is not a type of column"),
        ("source", json!({"type": "file", "path": "a.csv", "read": "some"}), "\"all\" or \"new\""),
        ("source", json!({"type": "file"}), "path: is missing"),
        ("source", json!({"type": "file", "path": "[.csv"}), "is no pattern"),
        ("sink", json!({"type": "file", "path": "a.ndjson", "columns": ["a"]}), "is only for CSV"),
        ("sink", json!({"type": "file", "path": "a.ndjson", "compression": "lz4"}), "\"gzip\" or \"zstd\""),
    ] {
        let mut flow = flow(Path::new("in.ndjson"), Path::new("out.ndjson"));
        flow[end] = value.clone();
        let said = refusal(&flow);
        assert!(said.contains(part), "{value}: {said}");
    }
    let mut value = flow(&source, &sink);
    value["max_rejected"] = json!("much");
    assert!(refusal(&value).contains("max_rejected"));
}
