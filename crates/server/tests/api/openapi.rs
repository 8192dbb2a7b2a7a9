use crate::common::{idle, request, token};
use axum::body::Body;
use everbeat_server::{Config, Scope};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

/// What callers rely on.
const CONTRACT: [(&str, &str); 85] = [
    ("get", "/"),
    ("get", "/livez"),
    ("get", "/readyz"),
    ("get", "/metrics"),
    ("get", "/openapi.json"),
    ("post", "/api/v1/runs"),
    ("post", "/api/v1/runs:batch"),
    ("get", "/api/v1/runs"),
    ("get", "/api/v1/runs/{id}"),
    ("get", "/api/v1/runs/{id}/attempts"),
    ("get", "/api/v1/runs/{id}/explain"),
    ("get", "/api/v1/runs/{id}/logs"),
    ("post", "/api/v1/runs/{id}/cancel"),
    ("post", "/api/v1/runs/{id}/retry"),
    ("post", "/api/v1/jobs"),
    ("get", "/api/v1/jobs"),
    ("get", "/api/v1/jobs/{id}"),
    ("delete", "/api/v1/jobs/{id}"),
    ("get", "/api/v1/jobs/{id}/logs"),
    ("post", "/api/v1/jobs/{id}/cancel"),
    ("post", "/api/v1/jobs/{id}/retry"),
    ("post", "/api/v1/graphs"),
    ("get", "/api/v1/graphs"),
    ("get", "/api/v1/graphs/{name}"),
    ("get", "/api/v1/graphs/{name}/mermaid"),
    ("get", "/api/v1/graphs/{name}/analytics"),
    ("post", "/api/v1/executions"),
    ("get", "/api/v1/executions"),
    ("get", "/api/v1/executions/count"),
    ("get", "/api/v1/executions/{id}"),
    ("get", "/api/v1/executions/{id}/mermaid"),
    ("get", "/api/v1/executions/{id}/summary"),
    ("get", "/api/v1/executions/{id}/history"),
    ("put", "/api/v1/executions/{id}/values"),
    ("get", "/api/v1/executions/{id}/values/{node}"),
    ("delete", "/api/v1/executions/{id}/values/{node}"),
    ("post", "/api/v1/executions/{id}/archive"),
    ("post", "/api/v1/executions/{id}/unarchive"),
    ("post", "/api/v1/executions/{id}/nodes/{node}/retry"),
    ("post", "/api/v1/executions/{id}/nodes/{node}/abandon"),
    ("get", "/ping/{name}"),
    ("post", "/ping/{name}"),
    ("get", "/ping/{name}/{signal}"),
    ("post", "/ping/{name}/{signal}"),
    ("get", "/api/v1/checks"),
    ("get", "/api/v1/checks/{name}"),
    ("put", "/api/v1/checks/{name}"),
    ("delete", "/api/v1/checks/{name}"),
    ("get", "/api/v1/checks/{name}/pings"),
    ("post", "/dataflow/heartbeat"),
    ("get", "/api/v1/ids"),
    ("get", "/api/v1/queues"),
    ("post", "/api/v1/queues/{name}/pause"),
    ("post", "/api/v1/queues/{name}/resume"),
    ("get", "/api/v1/tasks"),
    ("get", "/api/v1/replicas"),
    ("get", "/api/v1/replicas/{id}"),
    ("post", "/api/v1/replicas/{id}/drain"),
    ("get", "/api/v1/pools"),
    ("get", "/api/v1/pools/{name}"),
    ("get", "/api/v1/pools/{name}/workers"),
    ("post", "/api/v1/pools/{name}/scale"),
    ("post", "/api/v1/pools/{name}/drain"),
    ("post", "/api/v1/pools/{name}/resume"),
    ("post", "/api/v1/pools/{name}/restart"),
    ("get", "/api/v1/workers"),
    ("get", "/api/v1/workers/{id}"),
    ("post", "/api/v1/workers/{id}/ping"),
    ("post", "/api/v1/workers/{id}/restart"),
    ("post", "/api/v1/workers/{id}/drain"),
    ("post", "/api/v1/workers/{id}/dump"),
    ("get", "/api/v1/verdicts"),
    ("get", "/api/v1/verdicts/{id}"),
    ("get", "/api/v1/events"),
    ("get", "/api/admin/invariants"),
    ("get", "/api/admin/startup-log"),
    ("get", "/api/admin/recovery/jobs/status"),
    ("get", "/api/admin/recovery/jobs/sentinels"),
    ("get", "/api/admin/recovery/jobs/heartbeats"),
    ("get", "/api/admin/recovery/jobs/metrics"),
    ("get", "/api/admin/recovery/jobs/failed"),
    ("get", "/api/admin/recovery/jobs/stale"),
    ("post", "/api/admin/recovery/jobs/resume"),
    ("post", "/api/admin/recovery/jobs/clean"),
    ("get", "/api/admin/jobs/{jobId}/health"),
];

async fn document(config: Config) -> Value {
    idle(config).get("/openapi.json").await.ok()
}

fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let paths = document["paths"].as_object().expect("paths");
    let of = |(path, item): (&String, &Value)| {
        let methods = METHODS.iter().filter(|method| item.get(**method).is_some());
        methods.map(|method| (path.clone(), (*method).to_string(), item[*method].clone())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of).collect()
}

#[tokio::test]
async fn the_document_is_openapi_3_1_and_names_everything_once() {
    let document = document(Config::default()).await;
    assert_eq!(document["openapi"], "3.1.0");
    let operations = operations(&document);
    for (method, path) in CONTRACT {
        assert!(operations.iter().any(|(known, by, _)| known == path && by == method), "{method} {path}");
    }
    let ids: BTreeSet<_> = operations.iter().map(|(.., operation)| operation["operationId"].to_string()).collect();
    assert_eq!(ids.len(), operations.len());
    let text = document.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().expect("a name").to_string();
        assert!(document["components"]["schemas"].get(&name).is_some(), "{name} is referred to and not defined");
    }
}

#[tokio::test]
async fn every_documented_path_exists_and_knows_its_methods() {
    let server = idle(Config::default());
    for (path, method, _) in operations(&document(Config::default()).await) {
        if path == "/api/v1/events" {
            continue;
        }
        let concrete = path
            .replace("{id}", "00000000-0000-0000-0000-000000000007")
            .replace("{jobId}", "00000000-0000-0000-0000-000000000007")
            .replace("{name}", "default")
            .replace("{signal}", "start")
            .replace("{node}", "a");
        let answer = server.send(request(&method.to_uppercase(), &concrete, &[], Body::empty())).await;
        assert_ne!(answer.status, 405, "{method} {path}");
        if answer.status == 404 {
            assert!(!answer.text().contains("no-such-path"), "{method} {path}");
        }
        let other = server.send(request("PATCH", &concrete, &[], Body::empty())).await;
        assert_eq!(other.status, 405, "{path}");
    }
}

#[tokio::test]
async fn every_operation_documents_what_it_can_answer_as_problems() {
    for (path, method, operation) in operations(&document(Config::default()).await) {
        let responses = operation["responses"].as_object().expect("responses");
        let probe = path == "/livez" || path == "/readyz";
        let mut expected: Vec<&str> = vec!["405"];
        if !probe {
            expected.extend(["400", "401", "403", "408", "413", "415", "429", "500", "503"]);
        }
        if operation.get("requestBody").is_some() {
            expected.push("422");
        }
        if path.contains("{id}") || path.contains("{jobId}") {
            expected.push("404");
        }
        for status in expected {
            assert!(responses.contains_key(status), "{method} {path} does not document {status}");
        }
        for (status, response) in responses.iter().filter(|(status, _)| status.as_str() >= "400") {
            let schema = &response["content"]["application/problem+json"]["schema"]["$ref"];
            assert_eq!(schema, "#/components/schemas/Problem", "{method} {path} {status}");
        }
        assert!(responses.keys().any(|status| status.starts_with('2')), "{method} {path}");
    }
}

#[tokio::test]
async fn a_run_is_described_with_every_key_required() {
    let document = document(Config::default()).await;
    let run = &document["components"]["schemas"]["Run"];
    let required = run["required"].as_array().expect("required").len();
    assert_eq!(required, run["properties"].as_object().expect("properties").len());
    assert_eq!(required, 30);
    assert_eq!(document["components"]["schemas"]["NewRun"]["additionalProperties"], false);
    let states = &document["components"]["schemas"]["RunStateName"]["enum"];
    assert_eq!(*states, json!(["scheduled", "ready", "running", "succeeded", "failed", "cancelled"]));
}

#[tokio::test]
async fn executions_and_what_belongs_to_them_are_described_with_every_key_required() {
    let document = document(Config::default()).await;
    for (name, keys) in [("Execution", 9), ("Node", 8), ("Content", 4), ("Change", 8), ("Reach", 6), ("Analytics", 4)] {
        let schema = &document["components"]["schemas"][name];
        let required = schema["required"].as_array().unwrap_or_else(|| panic!("{name}: {schema}")).len();
        assert_eq!(required, schema["properties"].as_object().expect("properties").len(), "{name}");
        assert_eq!(required, keys, "{name}");
    }
    for (name, needed) in [
        ("NewGraph", json!(["name", "nodes"])),
        ("NewNode", json!(["name", "kind"])),
        ("NewExecution", json!(["graph"])),
        ("NewValues", json!(["values"])),
    ] {
        let schema = &document["components"]["schemas"][name];
        assert_eq!((&schema["required"], &schema["additionalProperties"]), (&needed, &json!(false)), "{name}");
    }
    let operation = &document["paths"]["/api/v1/executions"]["get"];
    let parameters = operation["parameters"].as_array().expect("parameters");
    let condition = parameters.iter().find(|parameter| parameter["name"] == "where").expect("where");
    assert_eq!(condition["schema"]["type"], "array", "{condition}");
    assert_eq!(condition["required"], false);
    let value = &document["paths"]["/api/v1/executions/{id}/values/{node}"]["get"];
    for status in ["200", "400", "404", "408", "409"] {
        assert!(value["responses"].get(status).is_some(), "{status}");
    }
}

#[tokio::test]
async fn tokens_are_asked_for_in_the_document_if_they_are_in_fact() {
    let open = document(Config::default()).await;
    assert!(operations(&open).iter().all(|(.., operation)| operation.get("security").is_none()));
    let config = Config { tokens: vec![token("reader", "secret", &[Scope::Read])], ..Config::default() };
    let headers = [("authorization", "Bearer secret")];
    let guarded = idle(config).send(request("GET", "/openapi.json", &headers, Body::empty())).await.ok();
    assert_eq!(guarded["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    for (path, method, operation) in operations(&guarded) {
        let probe = path == "/livez" || path == "/readyz";
        let expected = if probe { Value::Null } else { json!([{"token": []}]) };
        assert_eq!(operation["security"], expected, "{method} {path}");
    }
}

#[tokio::test]
async fn jobs_and_their_recovery_are_described_with_every_key_required() {
    let document = document(Config::default()).await;
    let schemas = &document["components"]["schemas"];
    let parts = schemas["Job"]["allOf"].as_array().unwrap_or_else(|| panic!("{}", schemas["Job"]));
    assert_eq!(parts[0]["$ref"], "#/components/schemas/Run", "a job is a run and more");
    for (name, schema, keys) in [
        ("Job", &parts[1], 14),
        ("Deleted", &schemas["Deleted"], 5),
        ("RecoveryStatus", &schemas["RecoveryStatus"], 7),
        ("Sentinel", &schemas["Sentinel"], 9),
        ("Heartbeat", &schemas["Heartbeat"], 5),
        ("HeartbeatSummary", &schemas["HeartbeatSummary"], 5),
        ("RecoveryMetrics", &schemas["RecoveryMetrics"], 7),
        ("FailedJob", &schemas["FailedJob"], 7),
        ("StaleJob", &schemas["StaleJob"], 5),
        ("Resumed", &schemas["Resumed"], 3),
        ("Cleaning", &schemas["Cleaning"], 6),
        ("JobHealth", &schemas["JobHealth"], 8),
    ] {
        let required = schema["required"].as_array().unwrap_or_else(|| panic!("{name}: {schema}")).len();
        assert_eq!(required, schema["properties"].as_object().expect("properties").len(), "{name}");
        assert_eq!(required, keys, "{name}");
    }
    let new = &schemas["NewJob"];
    assert_eq!((&new["required"], &new["additionalProperties"]), (&json!(["command"]), &json!(false)));
    let (command, env) = (&schemas["Arguments"], &schemas["Environment"]);
    assert_eq!((&command["minItems"], &command["prefixItems"][0]["minLength"]), (&json!(1), &json!(1)), "{command}");
    assert_eq!(env["propertyNames"]["type"], "string", "{env}");
    assert_eq!(schemas["HeartbeatStatusName"]["enum"], json!(["fresh", "stale", "dead", "unknown"]));
    for path in ["/api/v1/jobs/{id}/logs", "/api/v1/runs/{id}/logs"] {
        let answer = &document["paths"][path]["get"]["responses"]["200"];
        assert!(answer["content"].get("text/plain").is_some(), "{answer}");
        assert!(answer["headers"].get("everbeat-log-offset").is_some(), "{answer}");
    }
    for what in ["resume", "clean"] {
        let body = &document["paths"][format!("/api/admin/recovery/jobs/{what}")]["post"]["requestBody"];
        assert_ne!(body["required"], true, "{body}");
    }
}
