use crate::common::{Answer, Server, idle, request, started, token};
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::StatusCode;
use everbeat_server::{Config, Scope, Token};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tower::ServiceExt;

fn guarded() -> Config {
    let tokens = vec![
        token("reader", "r-secret", &[Scope::Read]),
        token("old submitter", "s-secret-1", &[Scope::Submit]),
        token("new submitter", "s-secret-2", &[Scope::Submit]),
        token("admin", "a-secret", &[Scope::Admin]),
        token("beat", "h-secret", &[Scope::Heartbeat, Scope::Worker]),
        token("prometheus", "m-secret", &[Scope::Metrics]),
    ];
    Config { tokens, ..Config::default() }
}

async fn ask(server: &Server, method: &str, path: &str, authorization: Option<&str>) -> Answer {
    let mut headers = vec![("host", "everbeat.example")];
    headers.extend(authorization.map(|value| ("authorization", value)));
    let body = match path {
        _ if method == "GET" => Value::Null,
        "/api/v1/runs" => json!({"task": "noop"}),
        "/api/v1/graphs" => json!({"name": "g", "nodes": [{"name": "a", "kind": "input"}]}),
        "/api/v1/executions" => json!({"graph": "g"}),
        path if path.ends_with("/values") => json!({"values": {"a": 1}}),
        _ => Value::Null,
    };
    let body = if body.is_null() {
        Body::empty()
    } else {
        headers.push(("content-type", "application/json"));
        Body::from(body.to_string())
    };
    server.send(request(method, path, &headers, body)).await
}

#[tokio::test]
async fn without_a_valid_token_only_probes_answer_and_nothing_is_written() {
    let server = started(guarded()).await;
    for authorization in [
        None,
        Some("Bearer wrong"),
        Some("Bearer "),
        Some("Bearer"),
        Some("r-secret"),
        Some("Basic r-secret"),
        Some("Bearer r-secret "),
    ] {
        for (method, path) in [
            ("GET", "/"),
            ("GET", "/metrics"),
            ("GET", "/openapi.json"),
            ("GET", "/api/v1/runs"),
            ("GET", "/api/v1/events"),
            ("GET", "/api/admin/invariants"),
            ("GET", "/no/such/path"),
            ("DELETE", "/api/v1/runs"),
            ("POST", "/api/v1/runs"),
            ("POST", "/api/v1/graphs"),
            ("GET", "/api/v1/graphs/g/mermaid"),
            ("POST", "/api/v1/executions"),
            ("GET", "/api/v1/executions"),
            ("PUT", "/api/v1/executions/0/values"),
            ("POST", "/api/v1/queues/default/pause"),
        ] {
            let answer = ask(&server, method, path, authorization).await;
            answer.problem(StatusCode::UNAUTHORIZED, "unauthenticated");
            assert!(answer.header("www-authenticate").starts_with("Bearer"), "{method} {path}");
        }
        assert_eq!(ask(&server, "GET", "/livez", authorization).await.status, 200);
        assert_eq!(ask(&server, "GET", "/readyz", authorization).await.status, 200);
    }
    assert_eq!(server.runs_stored(), 0);
    assert!(server.store.inspect(|state| state.paused.is_empty()));
}

#[tokio::test]
async fn each_scope_opens_its_own_part() {
    let server = started(guarded()).await;
    let replica = server.engine.replica_id().expect("joined");
    let drain = format!("/api/v1/replicas/{replica}/drain");
    let (reader, submitter, admin, beat, scraper) = (1, 2, 4, 8, 16);
    let execution = {
        ask(&server, "POST", "/api/v1/graphs", Some("Bearer a-secret")).await;
        ask(&server, "POST", "/api/v1/executions", Some("Bearer a-secret")).await.header("location").to_string()
    };
    let (values, value) = (format!("{execution}/values"), format!("{execution}/values/a"));
    let (archive, unarchive) = (format!("{execution}/archive"), format!("{execution}/unarchive"));
    for (method, path, open_to) in [
        ("GET", "/", reader | admin),
        ("GET", "/metrics", reader | admin | scraper),
        ("GET", "/openapi.json", reader | admin),
        ("GET", "/api/v1/runs", reader | admin),
        ("GET", "/api/v1/queues", reader | admin),
        ("POST", "/api/v1/runs", submitter | admin),
        ("POST", "/api/v1/graphs", submitter | admin),
        ("GET", "/api/v1/graphs/g", reader | admin),
        ("GET", "/api/v1/graphs/g/analytics", reader | admin),
        ("POST", "/api/v1/executions", submitter | admin),
        ("GET", "/api/v1/executions/count", reader | admin),
        ("GET", execution.as_str(), reader | admin),
        ("PUT", values.as_str(), submitter | admin),
        ("GET", value.as_str(), reader | admin),
        ("DELETE", value.as_str(), submitter | admin),
        ("POST", archive.as_str(), submitter | admin),
        ("POST", unarchive.as_str(), submitter | admin),
        ("GET", "/api/admin/invariants", admin),
        ("POST", "/api/v1/queues/default/pause", admin),
        ("POST", "/api/v1/queues/default/resume", admin),
        ("POST", drain.as_str(), admin),
    ] {
        let secrets = ["r-secret", "s-secret-1", "h-secret", "m-secret", "a-secret"];
        for (bit, secret) in [reader, submitter, beat, scraper, admin].into_iter().zip(secrets) {
            let answer = ask(&server, method, path, Some(&format!("Bearer {secret}"))).await;
            if open_to & bit == 0 {
                answer.problem(StatusCode::FORBIDDEN, "wrong-scope");
            } else {
                assert!(answer.status < 300, "{method} {path} with {secret}: {}", answer.text());
            }
        }
    }
}

/// A token without any of the scopes that routes need is told which one it lacks.
#[tokio::test]
async fn what_is_not_known_to_be_less_needs_admin() {
    let server = idle(guarded());
    for (method, path, scope) in [
        ("GET", "/", Scope::Read),
        ("GET", "/openapi.json", Scope::Read),
        ("GET", "/metrics", Scope::Metrics),
        ("HEAD", "/metrics", Scope::Metrics),
        ("OPTIONS", "/metrics", Scope::Metrics),
        ("POST", "/metrics", Scope::Admin),
        ("GET", "/api/v1/runs", Scope::Read),
        ("HEAD", "/api/v1/runs", Scope::Read),
        ("OPTIONS", "/api/v1/runs", Scope::Read),
        ("POST", "/api/v1/runs", Scope::Submit),
        ("DELETE", "/api/v1/runs", Scope::Submit),
        ("PATCH", "/api/v1/runs", Scope::Submit),
        ("POST", "/api/v1/runs:batch", Scope::Submit),
        ("GET", "/api/v1/runs:batch", Scope::Read),
        ("PUT", "/api/v1/runs:batch", Scope::Submit),
        ("POST", "/api/v1/runs/1/cancel", Scope::Submit),
        ("GET", "/api/v1/runs/1/cancel", Scope::Read),
        ("POST", "/api/v1/runs/1/no/such", Scope::Submit),
        ("POST", "/api/v1/runs/", Scope::Submit),
        ("GET", "/api/v1/jobs/1/logs", Scope::Read),
        ("POST", "/api/v1/jobs", Scope::Submit),
        ("POST", "/api/v1/jobs/1/retry", Scope::Submit),
        ("DELETE", "/api/v1/jobs/1", Scope::Submit),
        ("GET", "/api/admin/jobs/1/health", Scope::Admin),
        ("HEAD", "/api/admin/jobs/1/health", Scope::Admin),
        ("POST", "/api/admin/recovery/jobs/resume", Scope::Admin),
        ("OPTIONS", "/api/admin/recovery/jobs/resume", Scope::Admin),
        ("GET", "/api/admin/no/such", Scope::Admin),
        ("POST", "/api/v1/graphs", Scope::Submit),
        ("GET", "/api/v1/graphs/a/mermaid", Scope::Read),
        ("POST", "/api/v1/executions", Scope::Submit),
        ("GET", "/api/v1/executions/1/values/a", Scope::Read),
        ("PUT", "/api/v1/executions/1/values", Scope::Submit),
        ("DELETE", "/api/v1/executions/1/values/a", Scope::Submit),
        ("POST", "/api/v1/executions/1/nodes/a/retry", Scope::Submit),
        ("POST", "/api/v1/executions/1/archive", Scope::Submit),
        ("POST", "/api/v1/graphsx", Scope::Admin),
        ("POST", "/api/v1/executions:all", Scope::Admin),
        ("GET", "/api/admin/invariants", Scope::Admin),
        ("POST", "/api/v1/queues/a/pause", Scope::Admin),
        ("GET", "/api/v1/queues/a/pause", Scope::Read),
        ("POST", "/api/v1/replicas/1/drain", Scope::Admin),
        ("GET", "/api/v1/pools/a/workers", Scope::Read),
        ("POST", "/api/v1/pools/a/scale", Scope::Admin),
        ("GET", "/api/v1/workers", Scope::Read),
        ("POST", "/api/v1/workers/1/dump", Scope::Admin),
        ("GET", "/whatever", Scope::Read),
        ("DELETE", "/whatever", Scope::Admin),
    ] {
        let answer = ask(&server, method, path, Some("Bearer h-secret")).await;
        assert_eq!(answer.status, 403, "{method} {path}");
        if method != "HEAD" {
            let problem = answer.problem(StatusCode::FORBIDDEN, "wrong-scope");
            let scope = scope.as_str();
            assert_eq!(problem["detail"], format!("{method} {path} needs the scope {scope:?}"));
            assert_eq!(problem["hint"], format!("use a token with the scope {scope:?}"));
        }
    }
}

/// Whoever may use what could be there is told that it is not.
#[tokio::test]
async fn a_path_or_method_that_is_not_there_is_told_to_those_who_may_know() {
    let server = idle(guarded());
    for (method, path, secret, status) in [
        ("GET", "/no/such/path", "r-secret", 404),
        ("DELETE", "/no/such/path", "a-secret", 404),
        ("POST", "/api/v1/runs/1/no/such", "s-secret-1", 404),
        ("GET", "/api/admin/no/such", "a-secret", 404),
        ("OPTIONS", "/metrics", "m-secret", 405),
        ("OPTIONS", "/api/v1/runs", "r-secret", 405),
        ("DELETE", "/api/v1/runs", "s-secret-1", 405),
        ("GET", "/api/v1/runs:batch", "r-secret", 405),
        ("POST", "/api/v1/queues", "a-secret", 405),
    ] {
        let answer = ask(&server, method, path, Some(&format!("Bearer {secret}"))).await;
        assert_eq!(answer.status, status, "{method} {path}");
    }
    for (method, status) in [("HEAD", 200), ("POST", 405), ("OPTIONS", 405)] {
        assert_eq!(ask(&server, method, "/livez", None).await.status, status, "{method} /livez");
    }
}

#[tokio::test]
async fn scopes_hold_wherever_the_api_is_nested() {
    let server = idle(guarded());
    let outer = axum::Router::new().nest("/deep", everbeat_server::router(server.engine.clone(), guarded()));
    for (method, path, secret, status) in [
        ("GET", "/deep/livez", "", 200),
        ("POST", "/deep/livez", "", 405),
        ("GET", "/deep/api/v1/runs", "", 401),
        ("GET", "/deep/api/v1/runs", "s-secret-1", 403),
        ("GET", "/deep/api/v1/runs", "r-secret", 200),
        ("POST", "/deep/api/v1/queues/a/pause", "s-secret-1", 403),
        ("GET", "/deep/api/admin/invariants", "r-secret", 403),
        ("GET", "/deep/metrics", "m-secret", 200),
    ] {
        let bearer = format!("Bearer {secret}");
        let headers: Vec<_> = if secret.is_empty() { Vec::new() } else { vec![("authorization", bearer.as_str())] };
        let answer = outer.clone().oneshot(request(method, path, &headers, Body::empty())).await.expect("infallible");
        assert_eq!(answer.status(), status, "{method} {path} {secret}");
    }
}

/// The body of whoever is refused is not waited for.
#[tokio::test]
async fn a_refusal_comes_before_the_body() {
    let server = idle(guarded());
    for authorization in [None, Some("Bearer r-secret")] {
        let headers: Vec<_> = authorization.map(|value| ("authorization", value)).into_iter().collect();
        let never = Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
        let answer = server.send(request("POST", "/api/v1/runs", &headers, never)).await;
        assert_eq!(answer.status, if authorization.is_some() { 403 } else { 401 });
    }
}

#[tokio::test]
async fn two_tokens_overlap_while_one_replaces_the_other() {
    let server = idle(guarded());
    for authorization in ["Bearer s-secret-1", "bearer s-secret-2"] {
        assert_eq!(ask(&server, "POST", "/api/v1/runs", Some(authorization)).await.status, 201);
    }
    assert_eq!(server.runs_stored(), 2);
}

#[tokio::test]
async fn a_token_whose_hash_cannot_be_read_opens_nothing() {
    let broken = Token { sha256: "not a hash".to_string(), ..token("broken", "x", &[Scope::Admin]) };
    let config = Config { tokens: vec![broken], ..Config::default() };
    assert_eq!(config.check().expect_err("refused").field, "auth.tokens.sha256");
    let server = idle(config);
    let answer = ask(&server, "GET", "/api/v1/runs", None).await;
    answer.problem(StatusCode::UNAUTHORIZED, "unauthenticated");
}

async fn from(server: &Server, peer: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = request("GET", "/api/v1/runs", headers, Body::empty());
    let peer: SocketAddr = peer.parse().expect("an address");
    request.extensions_mut().insert(ConnectInfo(peer));
    server.send(request).await
}

#[tokio::test]
async fn the_allow_list_believes_only_trusted_proxies() {
    let config = Config {
        allow: vec!["10.0.0.0/8".parse().expect("net")],
        trusted_proxies: vec!["192.0.2.0/24".parse().expect("net")],
        ..guarded()
    };
    let server = idle(config);
    let auth = ("authorization", "Bearer r-secret");
    for (peer, forwarded, allowed) in [
        ("10.1.2.3:5", None, true),
        ("[::ffff:10.1.2.3]:5", None, true),
        ("172.16.0.1:5", None, false),
        ("172.16.0.1:5", Some("10.1.2.3"), false),
        ("192.0.2.1:5", None, false),
        ("192.0.2.1:5", Some("10.1.2.3"), true),
        ("192.0.2.1:5", Some("172.16.0.1"), false),
        ("192.0.2.1:5", Some("10.1.2.3, 172.16.0.1"), false),
        ("192.0.2.1:5", Some("172.16.0.1, 10.1.2.3"), true),
        ("192.0.2.1:5", Some("10.1.2.3, nonsense"), false),
    ] {
        let headers: Vec<_> = std::iter::once(auth).chain(forwarded.map(|hops| ("x-forwarded-for", hops))).collect();
        let answer = from(&server, peer, &headers).await;
        match allowed {
            true => assert_eq!(answer.status, 200, "{peer} {forwarded:?}"),
            false => _ = answer.problem(StatusCode::FORBIDDEN, "address-not-allowed"),
        }
    }
}

#[tokio::test]
async fn a_token_may_have_an_allow_list_of_its_own() {
    let bound = Token { allow: vec!["10.0.0.0/8".parse().expect("net")], ..token("bound", "b", &[Scope::Read]) };
    let server = idle(Config { tokens: vec![bound], ..Config::default() });
    let headers = [("authorization", "Bearer b")];
    assert_eq!(from(&server, "10.1.2.3:5", &headers).await.status, 200);
    from(&server, "127.0.0.1:5", &headers).await.problem(StatusCode::FORBIDDEN, "address-not-allowed");
}

#[tokio::test]
async fn without_tokens_only_this_machine_is_answered() {
    let server = idle(Config::default());
    for host in ["localhost", "localhost:7117", "127.0.0.1:7117", "127.1.2.3", "[::1]:7117"] {
        assert_eq!(from(&server, "127.0.0.1:5", &[("host", host)]).await.status, 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example:7117", "192.168.0.1", "0.0.0.0:7117", ""] {
        let answer = from(&server, "127.0.0.1:5", &[("host", host)]).await;
        answer.problem(StatusCode::FORBIDDEN, "foreign-host");
    }
    from(&server, "192.0.2.1:5", &[]).await.problem(StatusCode::FORBIDDEN, "address-not-allowed");
    let mut without = request("GET", "/api/v1/runs", &[], Body::empty());
    without.headers_mut().remove("host");
    server.send(without).await.problem(StatusCode::FORBIDDEN, "foreign-host");
    let foreign = [("host", "evil.example")];
    let absolute = request("GET", "http://evil.example/api/v1/runs", &foreign, Body::empty());
    server.send(absolute).await.problem(StatusCode::FORBIDDEN, "foreign-host");
    let two = request("GET", "http://evil.example/api/v1/runs", &[], Body::empty());
    server.send(two).await.problem(StatusCode::BAD_REQUEST, "malformed-request");
}

#[tokio::test]
async fn a_web_page_of_another_origin_can_start_nothing() {
    let server = idle(Config::default());
    for origin in
        ["https://evil.example", "null", "http://localhost:3000", "http://localhost:7117.evil.example", "file://"]
    {
        let headers = [("origin", origin)];
        let answer = server.post_with("/api/v1/runs", &headers, json!({"task": "noop"})).await;
        answer.problem(StatusCode::FORBIDDEN, "foreign-origin");
    }
    assert_eq!(server.runs_stored(), 0);
    let own = [("origin", "http://localhost:7117")];
    assert_eq!(server.post_with("/api/v1/runs", &own, json!({"task": "noop"})).await.status, 201);
}

#[tokio::test]
async fn a_read_only_server_changes_nothing() {
    let server = idle(Config { read_only: true, ..Config::default() });
    for path in ["/api/v1/runs", "/api/v1/runs:batch", "/api/v1/queues/default/pause"] {
        let answer = server.post_json(path, json!({"task": "noop"})).await;
        answer.problem(StatusCode::FORBIDDEN, "read-only");
    }
    server.get("/api/v1/runs").await.ok();
    assert_eq!(server.runs_stored(), 0);
}

#[tokio::test]
async fn one_address_cannot_flood_the_server_and_probes_go_on() {
    let server = idle(Config { rate_limit: Some(5), ..Config::default() });
    let mut refused = 0;
    for _ in 0..40 {
        let answer = server.get("/api/v1/runs").await;
        if answer.status == 429 {
            answer.problem(StatusCode::TOO_MANY_REQUESTS, "rate-limited");
            assert_eq!(answer.header("retry-after"), "1");
            refused += 1;
        }
    }
    assert!(refused >= 20, "{refused}");
    assert_eq!(server.get("/livez").await.status, 200);
    assert_eq!(from(&server, "127.0.0.2:5", &[]).await.status, 200);
}

#[tokio::test]
async fn without_tokens_no_other_address_is_listened_on() {
    let open = |address: &str| Config { listen: vec![address.parse().expect("an address")], ..Config::default() };
    for address in ["127.0.0.1:7117", "[::1]:7117", "[::ffff:127.0.0.1]:0"] {
        assert!(open(address).check().is_ok(), "{address}");
    }
    for address in ["0.0.0.0:7117", "[::]:7117", "192.0.2.1:7117"] {
        let error = open(address).check().expect_err(address);
        assert_eq!(error.field, "server.listen");
        assert!(error.hint.contains("auth.tokens"), "{error:?}");
        assert!(Config { tokens: guarded().tokens, ..open(address) }.check().is_ok());
    }
}
