//! Sources and sinks over HTTP, against small servers of the test's own.

#[path = "net/mod.rs"]
mod support;

use everbeat_flows::{Class, Room, Settings};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use support::server::{Request, Server, answer, babbler, json as json_answer, nobody};
use support::{ROOM, assert_trouble, careless, open_sink, open_source, operator, records, run_to_end, trouble_of};

/// Pages of five records each, found in every way.
fn pages(request: &Request, pages: usize) -> Vec<u8> {
    let url = url::Url::parse("http://host").unwrap().join(request.path()).unwrap();
    let parameter = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    let page: usize = parameter("page").or(parameter("token")).map_or(1, |page| page.parse().unwrap());
    let items: Vec<Value> =
        if page > pages { vec![] } else { (0..5).map(|n| json!({"n": (page - 1) * 5 + n})).collect() };
    let next = (page < pages).then(|| format!("/items?page={}", page + 1));
    let link = next.as_ref().map(|next| format!("link: <{next}>; rel=\"next\"\r\n")).unwrap_or_default();
    let token = (page < pages).then_some(page + 1);
    answer("200 OK", &link, &json!({"items": items, "next": next, "token": token}).to_string())
}

fn numbers(values: &[Value]) -> Vec<u64> {
    values.iter().map(|value| value["n"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn pages_are_found_in_four_ways() {
    let server = Server::start(|request| pages(request, 4));
    for next in [
        json!({"link": true}),
        json!({"pointer": "/next"}),
        json!({"cursor": "/token", "parameter": "token"}),
        json!({"page": "page", "from": 1}),
    ] {
        let source = json!({"type": "http", "next": next});
        let settings = operator("http", &format!("{}/items", server.url()));
        let mut opened = open_source(&source, &settings, None).await.unwrap();
        let run = run_to_end(&mut *opened, Room { records: 3, ..ROOM }).await.unwrap();
        assert_eq!(numbers(&run.values()), (0..20).collect::<Vec<_>>(), "{next}");
        // A run that is lost after any batch goes on behind it.
        for (batch, cursor) in run.cursors.iter().enumerate() {
            let mut again = open_source(&source, &settings, Some(cursor)).await.unwrap();
            let rest = run_to_end(&mut *again, ROOM).await.unwrap();
            let done = [3, 5, 8, 10, 13, 15, 18, 20, 20][batch];
            assert_eq!(rest.records, run.records[done..], "{next} after {cursor}");
        }
    }
}

#[tokio::test]
async fn records_stand_where_they_are_said_to_stand() {
    let server = Server::start(|request| match request.path() {
        "/list" => json_answer(&json!([1, 2])),
        "/data" => json_answer(&json!({"data": [1, 2], "count": 2})),
        "/deep" => json_answer(&json!({"result": {"rows": [1, 2]}})),
        _ => json_answer(&json!({"rows": 5})),
    });
    let settings = careless();
    let source = |path: &str| json!({"type": "http", "url": format!("{}{path}", server.url())});
    for path in ["/list", "/data"] {
        let mut opened = open_source(&source(path), &settings, None).await.unwrap();
        assert_eq!(run_to_end(&mut *opened, ROOM).await.unwrap().values(), [json!(1), json!(2)]);
    }
    let mut deep = source("/deep");
    assert_trouble(&trouble_of(&deep, &settings).await, Class::Permanent, "say with records");
    deep["records"] = json!("/result/rows");
    let mut opened = open_source(&deep, &settings, None).await.unwrap();
    assert_eq!(run_to_end(&mut *opened, ROOM).await.unwrap().records.len(), 2);
    let mut other = source("/other");
    other["records"] = json!("/rows");
    assert_trouble(&trouble_of(&other, &settings).await, Class::Permanent, "/rows");
}

#[tokio::test]
async fn statuses_say_whether_to_try_again() {
    let server = Server::start(|request| answer(&format!("{} Some", &request.path()[1..]), "", "hunter2"));
    for (status, class) in [
        (400, Class::Permanent),
        (401, Class::Permanent),
        (404, Class::Permanent),
        (408, Class::Transient),
        (429, Class::Transient),
        (500, Class::Transient),
        (503, Class::Transient),
    ] {
        let source = json!({"type": "http", "url": format!("{}/{status}", server.url())});
        assert_trouble(&trouble_of(&source, &careless()).await, class, &status.to_string());
    }
}

#[tokio::test]
async fn a_server_that_asks_for_patience_gets_it() {
    let asked = AtomicUsize::new(0);
    let server = Server::start(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => answer("429 Too Many Requests", "retry-after: 0\r\n", ""),
        1 => answer("503 Service Unavailable", "retry-after: 0\r\n", ""),
        _ => json_answer(&json!([1])),
    });
    let mut source = open_source(&json!({"type": "http", "url": server.url()}), &careless(), None).await.unwrap();
    assert_eq!(run_to_end(&mut *source, ROOM).await.unwrap().records.len(), 1);
    assert_eq!(server.seen().len(), 3);
}

#[tokio::test]
async fn patience_ends() {
    let server = Server::start(|_| answer("429 Too Many Requests", "retry-after: 0\r\n", ""));
    assert_trouble(
        &trouble_of(&json!({"type": "http", "url": server.url()}), &careless()).await,
        Class::Transient,
        "429",
    );
    assert_eq!(server.seen().len(), 4);
}

#[tokio::test]
async fn answers_that_are_none_are_named() {
    let source = |url: String| json!({"type": "http", "url": url, "timeout": "2s"});
    let away = source(format!("http://{}", nobody()));
    assert_trouble(&trouble_of(&away, &careless()).await, Class::Transient, "cannot connect");
    let garbage = source(format!("http://{}", babbler(b"", b"+OK this is not HTTP\r\n\r\n")));
    assert_trouble(&trouble_of(&garbage, &careless()).await, Class::Permanent, "does not answer in HTTP");
    let silent = json!({"type": "http", "url": format!("http://{}", babbler(b"", b"")), "timeout": "50ms"});
    assert_trouble(&trouble_of(&silent, &careless()).await, Class::Transient, "no answer within 50 ms");
    let closing = Server::start(|_| Vec::new());
    assert_trouble(&trouble_of(&source(closing.url()), &careless()).await, Class::Transient, "http://127.0.0.1");
    let html = Server::start(|_| answer("200 OK", "", "<html>hunter2"));
    assert_trouble(&trouble_of(&source(html.url()), &careless()).await, Class::Permanent, "is not JSON");
}

#[tokio::test]
async fn an_answer_beyond_the_bound_is_refused() {
    let server = Server::start(|request| match request.path() {
        "/declared" => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n[", 40 << 20).into_bytes(),
        _ => {
            let mut endless = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
            for _ in 0..40 {
                endless.extend_from_slice(b"100000\r\n");
                endless.extend(std::iter::repeat_n(b' ', 1 << 20));
                endless.extend_from_slice(b"\r\n");
            }
            endless
        }
    });
    for path in ["/chunked", "/declared"] {
        let source = json!({"type": "http", "url": format!("{}{path}", server.url())});
        assert_trouble(&trouble_of(&source, &careless()).await, Class::Permanent, "larger than 33554432 bytes");
    }
}

#[tokio::test]
async fn a_flow_reaches_no_inner_address_by_itself() {
    let server = Server::start(|_| json_answer(&json!([1])));
    let source = json!({"type": "http", "url": format!("http://localhost:{}", server.address.port())});
    assert_trouble(&trouble_of(&source, &Settings::default()).await, Class::Permanent, "loopback");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn a_redirect_leads_to_no_inner_address_and_takes_no_secret_along() {
    let inner = Server::start(|_| json_answer(&json!([1])));
    let to = inner.url();
    let outer = Server::start(move |request| match request.path() {
        "/next" => json_answer(&json!({"items": [], "next": format!("{to}/page")})),
        _ => answer("302 Found", &format!("location: {to}/elsewhere?x=1\r\n"), ""),
    });
    let url = outer.url().replace("http://", "http://u:hunter2@");
    let source = json!({"type": "http", "headers": {"x-api-key": "hunter2"}, "next": {"pointer": "/next"}});
    for path in ["", "/next"] {
        // The operator named the first server, not the second.
        let trouble = trouble_of(&source, &operator("http", &format!("{url}{path}"))).await;
        assert_trouble(&trouble, Class::Permanent, "loopback");
        assert!(inner.seen().is_empty());
    }
    let settings = Settings { allow_private_targets: true, ..operator("http", &url) };
    let mut opened = open_source(&source, &settings, None).await.unwrap();
    assert_eq!(run_to_end(&mut *opened, ROOM).await.unwrap().records.len(), 1);
    let first = outer.seen().pop().unwrap();
    assert_eq!(first.header("authorization"), Some("Basic dTpodW50ZXIy"));
    assert_eq!(first.header("x-api-key"), Some("hunter2"));
    let second = inner.seen().pop().unwrap();
    assert_eq!(second.path(), "/elsewhere?x=1");
    assert_eq!((second.header("authorization"), second.header("x-api-key")), (None, None));
}

#[tokio::test]
async fn redirects_end() {
    let server = Server::start(|_| answer("307 Temporary Redirect", "location: /again\r\n", ""));
    let trouble = trouble_of(&json!({"type": "http", "url": server.url()}), &careless()).await;
    assert_trouble(&trouble, Class::Permanent, "more than 5 times");
    assert_eq!(server.seen().len(), 6);
    let nowhere = Server::start(|_| answer("302 Found", "", ""));
    let trouble = trouble_of(&json!({"type": "http", "url": nowhere.url()}), &careless()).await;
    assert_trouble(&trouble, Class::Permanent, "without saying where");
}

#[tokio::test]
async fn a_sink_posts_each_record_with_a_key_that_tells_repeats() {
    let server = Server::start(|request| match request.body.as_str() {
        "2" => answer("422 Unprocessable Content", "", ""),
        _ => answer("201 Created", "", ""),
    });
    let sink = json!({"type": "http", "url": format!("{}/in", server.url())});
    for fence in 1..=2 {
        let mut sink = open_sink(&sink, &careless(), fence).await.unwrap();
        let written = sink.write(records([json!(1), json!(2), json!({"a": 3})]), &Value::Null).await.unwrap();
        assert_eq!((written.written, written.rejected.len()), (2, 1));
        assert_eq!(written.rejected[0].raw, "2");
    }
    let seen = server.seen();
    let keys: Vec<&str> = seen.iter().map(|request| request.header("idempotency-key").unwrap()).collect();
    assert_eq!(keys, ["run/in:0", "run/in:1", "run/in:2", "run/in:0", "run/in:1", "run/in:2"]);
    assert_eq!(seen[2].line, "POST /in HTTP/1.1");
    assert_eq!(seen[2].body, r#"{"a":3}"#);
    assert_eq!(seen[2].header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn a_sink_posts_batches_if_it_is_asked_to() {
    let server = Server::start(|request| match request.path() {
        "/in" => answer("200 OK", "", ""),
        "/busy" => answer("500 Oops", "", ""),
        "/moved" => answer("302 Found", "location: /in\r\n", ""),
        _ => answer("400 Bad Request", "", ""),
    });
    let sink = |path: &str| json!({"type": "http", "url": format!("{}{path}", server.url()), "batch": true});
    for fence in 1..=2 {
        let mut opened = open_sink(&sink("/in"), &careless(), fence).await.unwrap();
        assert_eq!(opened.write(records([json!(1), json!(2)]), &Value::Null).await.unwrap().written, 2);
        assert_eq!(opened.write(Vec::new(), &Value::Null).await.unwrap().written, 0);
    }
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].body, "[1,2]");
    assert_eq!(seen[0].header("idempotency-key"), seen[1].header("idempotency-key"));
    for (path, class) in [("/busy", Class::Transient), ("/moved", Class::Permanent), ("/other", Class::Permanent)] {
        let mut opened = open_sink(&sink(path), &careless(), 1).await.unwrap();
        let trouble = opened.write(records([json!(1)]), &Value::Null).await.unwrap_err();
        assert_trouble(&trouble, class, path);
    }
}
