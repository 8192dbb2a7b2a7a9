use super::*;
use serde_json::json;
use std::io::Write;

/// Reads a file with this text, these variables and these flags.
fn load(file: &str, env: &[(&str, &str)], flags: Flags) -> Result<Config, Refused> {
    let mut toml = tempfile::NamedTempFile::new().expect("file");
    toml.write_all(file.as_bytes()).expect("write");
    let flags = Flags { config: Some(toml.path().to_path_buf()), ..flags };
    Config::load(&flags, env.iter().map(|(name, value)| (name.to_string(), value.to_string())))
}

fn refused(file: &str, env: &[(&str, &str)]) -> String {
    load(file, env, Flags::default()).expect_err("refused").to_string()
}

fn seconds(secs: u64) -> std::time::Duration {
    std::time::Duration::from_secs(secs)
}

#[test]
fn every_written_default_is_the_default_in_force() {
    for key in KEYS {
        let text = match key.kind.name() {
            "text" | "duration" | "size" => json!(key.default),
            _ => toml_value(key.default),
        };
        let mut config = Config::initial();
        (key.set)(&mut config, &text).unwrap_or_else(|invalid| panic!("{}: {invalid}", key.path));
        config.agree().unwrap_or_else(|invalid| panic!("{}: {invalid}", key.path));
        let mut initial = Config::initial();
        initial.agree().expect("defaults agree");
        if key.path == "store.url" {
            initial.store.url = config.store.url.clone();
        }
        assert_eq!(format!("{config:?}"), format!("{initial:?}"), "{}", key.path);
    }
}

/// `off` where a word stands for no number.
fn toml_value(text: &str) -> Value {
    let table: Result<toml::Table, _> = format!("value = {text}").parse();
    table.map_or_else(|_| json!(text), |table| serde_json::to_value(&table["value"]).expect("value"))
}

#[test]
fn the_file_is_overridden_by_the_environment_and_that_by_flags() {
    let file = "[server]\nlisten = \"127.0.0.1:1\"\n[store]\nurl = \"sqlite:///file.db\"\n[replica]\nslots = 1\n";
    let env = [("EVERBEAT_SERVER__LISTEN", "127.0.0.1:2"), ("EVERBEAT_STORE__URL", "memory:")];
    let flags = Flags { listen: Some("127.0.0.1:3".to_string()), ..Flags::default() };
    let config = load(file, &env, flags).expect("good");
    assert_eq!(config.listen.port(), 3);
    assert_eq!(config.store_url(), "memory:");
    assert_eq!(config.settings.slots, 1);
    assert_eq!(config.given["server.listen"].origin, Origin::Flag("--listen"));
}

#[test]
fn a_whole_file_is_read() {
    let hash = "a".repeat(64);
    let file = format!(
        r#"
        [server]
        body_limit = "8MiB"
        request_timeout = 5
        rate_limit = 100
        read_only = true
        [store]
        url = "postgres://app:secret@db/everbeat"
        pool_size = 2
        [replica]
        heartbeat_interval = "1s"
        heartbeat_timeout = "3s"
        drain_grace = 0
        [runs]
        heartbeat_timeout = "off"
        deadline = "1h30m"
        max_attempts = 5
        backoff = {{ initial = "10ms" }}
        on_lost = "fail"
        keep_finished = "7d"
        keep_events = 5
        [[queue]]
        name = "mail"
        concurrency = 2
        rate = 0.5
        [[task]]
        name = "sleep"
        concurrency = 3
        [auth]
        tokens = [{{ name = "ci", sha256 = "{hash}", scopes = ["read", "submit", "metrics"], allow = ["10.0.0.0/8"] }}]
        allow = ["127.0.0.1"]
        trusted_proxies = ["::1"]
        [telemetry]
        log = "warn,everbeat_engine=debug"
        log_format = "json"
        "#
    );
    let config = load(&file, &[("EVERBEAT_SERVER__LISTEN", "0.0.0.0:0")], Flags::default()).expect("good");
    assert_eq!(config.http.body_limit, 8 << 20);
    assert_eq!(config.http.request_timeout, seconds(5));
    assert_eq!(config.http.rate_limit, Some(100));
    assert!(config.http.read_only && config.telemetry.json);
    assert_eq!(mask(&config.store_url()), "postgres://app:…@db/everbeat");
    assert_eq!(config.settings.heartbeat_timeout, seconds(3));
    assert_eq!(config.settings.drain_grace, seconds(0));
    let runs = &config.settings.runs;
    assert_eq!((runs.heartbeat_timeout, runs.deadline, runs.max_attempts), (None, Some(seconds(5400)), 5));
    assert_eq!((runs.backoff.initial.as_millis(), runs.backoff.factor), (10, 2.0));
    assert_eq!(config.settings.keep_finished, seconds(7 * 86_400));
    assert_eq!(config.settings.queues["mail"].concurrency, Some(2));
    assert_eq!(config.settings.queues["mail"].rate, Some(0.5));
    assert_eq!(config.settings.tasks["sleep"], 3);
    assert_eq!(config.http.tokens[0].scopes.len(), 3);
    assert_eq!(config.http.allow[0].to_string(), "127.0.0.1/32");
}

#[test]
fn every_key_can_be_set_by_the_environment() {
    let env = [
        ("EVERBEAT_RUNS__MAX_ATTEMPTS", "7"),
        ("EVERBEAT_RUNS__BACKOFF", "{\"initial\":\"10ms\",\"max\":\"1s\"}"),
        ("EVERBEAT_RUNS__BACKOFF__MAX", "2s"),
        ("EVERBEAT_SERVER__READ_ONLY", "true"),
        ("EVERBEAT_SERVER__RATE_LIMIT", "off"),
        ("EVERBEAT_SERVER__BODY_LIMIT", "2048"),
        ("EVERBEAT_REPLICA__HEARTBEAT_TIMEOUT", "3"),
        ("EVERBEAT_QUEUE__BULK_MAIL__CONCURRENCY", "4"),
        ("EVERBEAT_QUEUE__OTHER__RATE", "1.5"),
        ("EVERBEAT_TASK", "not configuration"),
        ("EVERBEAT_URL", "not configuration"),
    ];
    let config = load("[[queue]]\nname = \"bulk-mail\"\nrate = 2\n", &env, Flags::default()).expect("good");
    let runs = &config.settings.runs;
    assert_eq!((runs.max_attempts, runs.backoff.initial.as_millis(), runs.backoff.max), (7, 10, seconds(2)));
    assert!(config.http.read_only);
    assert_eq!(config.http.body_limit, 2048);
    assert_eq!(config.settings.heartbeat_timeout, seconds(3));
    assert_eq!(config.settings.heartbeat_interval.as_millis(), 500, "a timeout given alone brings its interval along");
    let mail = config.settings.queues["bulk-mail"];
    assert_eq!((mail.concurrency, mail.rate), (Some(4), Some(2.0)));
    assert_eq!(config.settings.queues["other"].rate, Some(1.5));
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_known_one() {
    for (file, expected) in [
        ("[replica]\nhartbeat_timeout = \"5s\"", "did you mean replica.heartbeat_timeout?"),
        ("[replcia]\nslots = 5", "did you mean [replica]?"),
        ("listen = \"127.0.0.1:0\"", "did you mean server.listen?"),
        ("[server]\nurl = \"memory:\"", "did you mean store.url?"),
        ("[server]\ncolour = 1", "the known keys of [server] are listen, data_dir"),
        ("[weather]\nsun = 1", "the known sections are server, store"),
        ("[[queue]]\nname = \"a\"\nconcurency = 1", "did you mean concurrency?"),
        ("[runs]\nbackoff = { inital = \"1s\" }", "initial"),
    ] {
        let said = refused(file, &[]);
        assert!(said.contains(expected), "{file}: {said}");
        assert!(said.contains("from: file"), "{file}: {said}");
    }
    let said = refused("", &[("EVERBEAT_REPLICA__SLOT", "5")]);
    assert!(said.contains("EVERBEAT_REPLICA__SLOT") && said.contains("EVERBEAT_REPLICA__SLOTS"), "{said}");
}

#[test]
fn bad_values_are_refused_with_key_value_and_remedy() {
    for (file, key, value, remedy) in [
        ("[server]\nlisten = \"here\"", "server.listen", "\"here\"", "127.0.0.1:7117"),
        ("[server]\nlisten = 80", "server.listen", "80", "127.0.0.1:7117"),
        ("[server]\nlisten = \"0.0.0.0:80\"", "server.listen", "0.0.0.0:80", "auth.tokens"),
        ("[server]\nbody_limit = \"big\"", "server.body_limit", "\"big\"", "4MiB"),
        ("[server]\nbody_limit = \"1B\"", "server.body_limit", "\"1B\"", "1024"),
        ("[server]\nread_only = \"yes\"", "server.read_only", "\"yes\"", "true or false"),
        ("[server]\nrate_limit = -1", "server.rate_limit", "-1", "off"),
        ("[store]\nurl = \"mysql://x\"", "store.url", "mysql://x", "sqlite://"),
        ("[replica]\nslots = 0", "replica.slots", "0", "1 to 1000000"),
        ("[replica]\nsweep_interval = \"soon\"", "replica.sweep_interval", "\"soon\"", "30s"),
        ("[runs]\nmax_attempts = 0", "runs.max_attempts", "0", "1 to 1000"),
        ("[runs]\nbackoff = { factor = 0.1 }", "runs.backoff.factor", "0.1", "1 to 100"),
        ("[runs]\non_lost = \"panic\"", "runs.on_lost", "panic", "retry"),
        ("[queue]\nname = \"a\"", "queue", "name", "[[queue]]"),
        ("[[queue]]\nname = \"\"", "queue.0.name", "\"\"", "characters"),
        ("[[task]]\nname = \"a\"", "task.0.concurrency", "nothing", "concurrency = N"),
        ("[auth]\nallow = [\"home\"]", "auth.allow", "home", "10.0.0.0/8"),
        ("[auth]\ntokens = [{name=\"a\", sha256=\"b\", scopes=[\"read\"]}]", "auth.tokens.0.sha256", "b", "sha256sum"),
        ("[telemetry]\nlog_format = \"xml\"", "telemetry.log_format", "xml", "json"),
        ("server = 5", "server", "5", "[server]"),
        ("[server", "line 1", "[server", "correct that line"),
    ] {
        let said = refused(file, &[]);
        assert!(said.contains(key) && said.contains(value) && said.contains(remedy), "{file}: {said}");
    }
}

#[test]
fn a_value_of_the_wrong_type_is_called_that() {
    for (file, key, value, expected) in [
        ("[replica]\nslots = \"many\"", "replica.slots", "\"many\"", "text, and should be of type whole number"),
        ("[replica]\nslots = { a = 1 }", "replica.slots", "\"a\"", "a table, and should be of type whole number"),
        ("[server]\nlisten = 80", "server.listen", "80", "a number, and should be of type text"),
        ("[server]\nread_only = 1", "server.read_only", "1", "a number, and should be of type true or false"),
        ("[runs]\nbackoff = 5", "runs.backoff", "5", "a number, and should be of type table"),
        ("[runs]\ndeadline = true", "runs.deadline", "true", "true or false, and should be of type duration"),
        ("[auth]\nallow = \"10.0.0.0/8\"", "auth.allow", "10.0.0.0/8", "text, and should be of type list"),
        ("[replica]\nslots = 2026-01-01", "replica.slots", "2026-01-01", "text, and should be of type whole number"),
    ] {
        let said = refused(file, &[]);
        assert!(said.contains(key) && said.contains(value), "{file}: {said}");
        assert!(said.contains(&format!("has the wrong type: it is {expected}")), "{file}: {said}");
        assert!(said.contains("hint:") && !said.contains("$__"), "{file}: {said}");
    }
}

#[test]
fn an_interval_too_long_for_its_timeout_is_refused_with_both_values() {
    let runs = refused("[runs]\nheartbeat_interval = \"70s\"\nheartbeat_timeout = \"120s\"", &[]);
    assert!(runs.contains("runs.heartbeat_interval") && runs.contains("70s") && runs.contains("2m"), "{runs}");
    let replica = refused("[replica]\nheartbeat_interval = \"2s\"\nheartbeat_timeout = \"5s\"", &[]);
    assert!(replica.contains("\"2s\"") && replica.contains("\"5s\""), "{replica}");
    assert!(replica.contains("replica.heartbeat_interval"), "{replica}");
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let said = refused("[server]\ncolour = 1\nlisten = \"x\"", &[("EVERBEAT_REPLICA__SLOTS", "many")]);
    for part in ["server.colour", "server.listen", "replica.slots", "EVERBEAT_REPLICA__SLOTS"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_missing_file_is_an_error_only_if_it_was_named() {
    let flags = Flags { config: Some("/does/not/exist.toml".into()), ..Flags::default() };
    let said = Config::load(&flags, []).expect_err("refused").to_string();
    assert!(said.contains("/does/not/exist.toml"), "{said}");
}

#[test]
fn the_reference_page_names_every_key() {
    let page = markdown();
    for key in KEYS {
        assert!(page.contains(&key.env_name()), "{}", key.path);
    }
}

#[test]
fn no_secret_of_a_url_is_shown() {
    for (url, shown) in [
        ("postgres://app:hush@db/everbeat", "postgres://app:…@db/everbeat"),
        ("postgres://app:hu@sh@db/everbeat", "postgres://app:…@db/everbeat"),
        ("postgres://db/e?password=hush&sslmode=require", "postgres://db/e?password=…&sslmode=require"),
        ("postgres://db/e?user=app&sslpassword=hush", "postgres://db/e?user=app&sslpassword=…"),
        ("postgres://db/e?password=hu&hush", "postgres://db/e?password=…&…"),
        ("postgres://db/e?password=hush@db", "postgres://…"),
        ("postgres://app:hush?x@db/e", "postgres://…"),
        ("postgres:/app:hush@db", "…"),
        ("postgres://app@db/everbeat", "postgres://app@db/everbeat"),
        ("sqlite:///srv/e.db", "sqlite:///srv/e.db"),
        ("memory:", "memory:"),
    ] {
        assert_eq!(mask(url), shown);
    }
    for said in [
        refused("[store]\nuri = \"postgres://app:hush@db/e\"", &[]),
        refused("", &[("EVERBEAT_STORE__URI", "postgres://app:hush@db/e")]),
        refused("[store]\nurl = \"postgres://app:hush@db/e", &[]),
        refused("[store]\nurl = \"postgress://app:hush@db/e\"", &[]),
    ] {
        assert!(!said.contains("hush"), "{said}");
    }
}

#[test]
fn a_password_on_the_command_line_is_noticed() {
    let given = |url: &str| load("", &[], Flags { store: Some(url.to_string()), ..Flags::default() }).expect("good");
    for (url, shown) in [
        ("postgres://app:hush@db/e", true),
        ("postgres://db/e?password=hush", true),
        ("postgres://app@db/e?sslmode=require&connect_timeout=3", false),
        ("sqlite:///srv/e.db", false),
    ] {
        assert_eq!(given(url).password_is_shown(), shown, "{url}");
    }
    let quietly = load("", &[("EVERBEAT_STORE__URL", "postgres://app:hush@db/e")], Flags::default()).expect("good");
    assert!(!quietly.password_is_shown());
}

#[test]
fn the_url_may_stand_in_a_file() {
    let mut file = tempfile::NamedTempFile::new().expect("file");
    file.write_all(b"postgres://app:hush@db/everbeat\n").expect("write");
    let path = file.path().display().to_string();
    let config = load("", &[("EVERBEAT_STORE__URL_FILE", &path)], Flags::default()).expect("good");
    assert_eq!(config.store_url(), "postgres://app:hush@db/everbeat");
    let both = refused("[store]\nurl = \"memory:\"", &[("EVERBEAT_STORE__URL_FILE", &path)]);
    assert!(both.contains("store.url_file") && both.contains("keep one"), "{both}");
    let missing = refused("[store]\nurl_file = \"/does/not/exist\"", &[]);
    assert!(missing.contains("/does/not/exist") && missing.contains("cannot be read"), "{missing}");
}

#[test]
fn pools_are_read_with_all_that_can_be_said_of_them() {
    let file = r#"
        [[pool]]
        name = "ml"
        command = ["python3", "-m", "everbeat.worker", "tasks:app"]
        size = 0
        slots = 8
        queues = ["gpu", "default"]
        ping_timeout = "1s"
        max_missed = 2
        startup_grace = "5s"
        worker_ttl = "4s"
        dependent = false
        check_interval = "100ms"
        grace_period = 0
        stop_grace = "1m"
        kill_grace = "1s"
        max_age = "1d"
        max_runs = 1000
        max_memory = "2GiB"
        containment = "strict"
        env = { LANG = "C", KEY = "hush" }
        cwd = "workers"
        [[pool]]
        name = "resize"
        command = ["./resize"]
        protocol = "lines"
        cwd = "/srv"
        [workers]
        ping_timeout = "5s"
        worker_ttl = "20s"
        [telemetry]
        heartbeat_events = false
    "#;
    let mut toml = tempfile::NamedTempFile::new().expect("file");
    toml.write_all(file.as_bytes()).expect("write");
    let flags = Flags { config: Some(toml.path().to_path_buf()), ..Flags::default() };
    let env = [("EVERBEAT_POOL__ML__SIZE", "3"), ("EVERBEAT_POOL__RESIZE__TASKS", "[\"shrink\",\"grow\"]")];
    let env = env.map(|(name, value)| (name.to_string(), value.to_string()));
    let config = Config::load(&flags, env).unwrap_or_else(|refused| panic!("{refused}"));
    let [ml, resize] = config.settings.pools.as_slice() else { panic!("two pools") };
    assert_eq!((ml.name.as_str(), ml.command.len(), ml.size, ml.slots), ("ml", 4, 3, 8));
    assert_eq!(ml.queues, ["gpu", "default"]);
    assert_eq!((ml.ping_interval.as_millis(), ml.ping_timeout, ml.max_missed), (200, seconds(1), 2));
    assert_eq!((ml.startup_grace, ml.worker_ttl, ml.stop_grace), (seconds(5), seconds(4), seconds(60)));
    assert_eq!((ml.grace_period, ml.kill_grace), (seconds(0), seconds(1)));
    assert_eq!((ml.max_age, ml.max_runs, ml.max_memory), (Some(seconds(86_400)), Some(1000), Some(2 << 30)));
    assert!(ml.heartbeat && !ml.dependent);
    assert_eq!(ml.env["KEY"], "hush");
    let base = std::path::absolute(toml.path().parent().expect("a folder")).expect("a path");
    assert_eq!(ml.cwd, Some(base.join("workers")), "a folder is named from where the file stands");
    assert_eq!(
        (resize.tasks.as_slice(), resize.cwd.as_deref()),
        (&["shrink".into(), "grow".into()][..], Some(Path::new("/srv")))
    );
    let remote = &config.settings.remote_workers;
    assert_eq!((remote.ping_interval, remote.ping_timeout, remote.worker_ttl), (seconds(1), seconds(5), seconds(20)));
    assert!(!config.telemetry.heartbeat_events && config.telemetry.process_events);
    assert!(!masked_pools(&config.given["pool"].value).to_string().contains("hush"));
    let alone = load("[[pool]]\nname = \"wc\"\ncommand = [\"wc\"]\nprotocol = \"lines\"", &[], Flags::default());
    assert_eq!(alone.expect("good").settings.pools[0].tasks, ["wc"], "the name of the pool is its task");
}

#[test]
fn pools_that_cannot_be_are_refused_with_key_value_and_remedy() {
    let pool = |rest: &str| format!("[[pool]]\nname = \"ml\"\n{rest}");
    let good = |rest: &str| pool(&format!("command = [\"worker\"]\n{rest}"));
    for (file, key, value, remedy) in [
        (pool(""), "pool.0.command", "nothing", "program and its arguments"),
        (pool("command = []"), "pool.0.command", "[]", "program and its arguments"),
        (pool("command = [\"\"]"), "pool.0.command", "[\"\"]", "program and its arguments"),
        (pool("command = \"python3 w.py\""), "pool.0.command", "python3 w.py", "never a shell line"),
        (pool("command = [\"worker\", 5]"), "pool.0.command", "5", "not text"),
        (good("siez = 2"), "pool.0.siez", "2", "did you mean size?"),
        (good("size = 10001"), "pool.0.size", "10001", "0 to 10000"),
        (good("slots = 0"), "pool.0.slots", "0", "1 to 1000"),
        (good("max_missed = 0"), "pool.0.max_missed", "0", "1 to 1000"),
        (good("ping_interval = \"6s\""), "pool.0.ping_interval", "\"6s\"", "at most \"5s\""),
        (good("worker_ttl = \"3s\""), "pool.0.ping_interval", "\"2s\"", "worker_ttl"),
        (good("ping_timeout = 0"), "pool.0.ping_timeout", "0", "above zero"),
        (good("startup_grace = \"soon\""), "pool.0.startup_grace", "soon", "30s"),
        (good("max_memory = \"1kB\""), "pool.0.max_memory", "1kB", "bytes"),
        (good("max_runs = 0"), "pool.0.max_runs", "0", "from 1"),
        (good("queues = []"), "pool.0.queues", "[]", "[\"default\"]"),
        (good("queues = [\"a b\"]"), "pool.0.queues", "a b", "without spaces"),
        (good("tasks = [\"x\"]"), "pool.0.tasks", "x", "protocol = \"lines\""),
        (good("protocol = \"http\""), "pool.0.protocol", "http", "grpc, lines"),
        (good("protocol = \"lines\"\nping_timeout = \"5s\""), "pool.0.ping_timeout", "5s", "protocol = \"grpc\""),
        (good("protocol = \"lines\"\nheartbeat = true"), "pool.0.heartbeat", "true", "leave it out"),
        (good("containment = \"none\""), "pool.0.containment", "none", "auto, strict"),
        (good("env = { A = 5 }"), "pool.0.env.A", "…", "LANG"),
        (good("env = { EVERBEAT_POOL = \"x\" }"), "pool.0.env.EVERBEAT_POOL", "…", "EVERBEAT_"),
        (good("heartbeat = \"yes\""), "pool.0.heartbeat", "yes", "true or false"),
        (good("cwd = \"\""), "pool.0.cwd", "\"\"", "write it like"),
        (good(&good("")), "pool.1.name", "\"ml\"", "one [[pool]]"),
        ("[[pool]]\nname = \"a b\"\ncommand = [\"x\"]".to_string(), "pool.0.name", "a b", "without spaces"),
        ("[workers]\nping_interval = \"8s\"".to_string(), "workers.ping_interval", "8s", "workers.ping_timeout"),
        (
            "[server]\nworker_listen = \"0.0.0.0:7118\"".to_string(),
            "server.worker_listen",
            "0.0.0.0:7118",
            "auth.tokens",
        ),
        ("[server]\ntls_cert = \"a.pem\"".to_string(), "server.tls_cert", "a.pem", "set both"),
        ("[server]\ntls_key = \"a.pem\"".to_string(), "server.tls_key", "a.pem", "set both"),
        ("[server]\ntls_cert = \"a\"\ntls_key = \"b\"".to_string(), "server.tls_cert", "a", "server.worker_listen"),
    ] {
        let said = refused(&file, &[]);
        assert!(said.contains(key) && said.contains(value) && said.contains(remedy), "{file}: {said}");
        assert!(said.contains("from: file"), "{file}: {said}");
    }
}
