//! What a server does before it works: it looks at its store and its data folder, and refuses what is not its own.

mod common;
mod postgres;

use common::{Options, Server, code, quick, stderr, stdout, stopwatch};
use postgres::Postgres;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// Far below the ten seconds for which a store that is away is waited for, and above what a loaded machine needs.
const AT_ONCE: Duration = Duration::from_secs(9);

fn refuses(options: &Options, parts: &[&str]) -> String {
    let output = options.command().output().expect("it runs");
    let said = stderr(&output);
    assert_eq!(code(&output), 3, "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
    said
}

/// A PostgreSQL server that asks everybody for a password, and takes none. Answers its port.
fn asks_for_password() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let Ok(mut socket) = socket else { return };
            let mut asked = [0; 1024];
            // First whether it speaks TLS, then who it is.
            for answer in [&b"N"[..], b"R\0\0\0\x08\0\0\0\x03", b"E\0\0\0\x1eSFATAL\0VFATAL\0C28P01\0Mno\0\0"] {
                if socket.read(&mut asked).is_err() || socket.write_all(answer).is_err() {
                    break;
                }
            }
        }
    });
    port
}

#[test]
fn a_missing_or_wrong_password_is_told_at_once_and_never_shown() {
    let port = asks_for_password();
    let begun = stopwatch();
    let said = refuses(&quick().store(format!("postgres://app@127.0.0.1:{port}/e")), &["password", "PGPASSFILE"]);
    assert!(!said.contains("cannot be reached yet"), "{said}");
    for store in
        [format!("postgres://app:hush@127.0.0.1:{port}/e"), format!("postgres://app@127.0.0.1:{port}/e?password=hush")]
    {
        let said = refuses(&quick().store(store), &["28P01", "every user of this machine can see the password"]);
        assert!(!said.contains("hush") && !said.contains("cannot be reached yet"), "{said}");
    }
    let quietly = quick().env("EVERBEAT_STORE__URL", format!("postgres://app@127.0.0.1:{port}/e"));
    let said = refuses(&quietly.env("PGPASSWORD", "hush"), &["28P01"]);
    assert!(!said.contains("every user"), "{said}");
    assert!(begun.elapsed() < AT_ONCE * 4, "took {:?}", begun.elapsed());
}

#[test]
fn a_mode_of_encryption_that_is_not_to_be_had_is_told_at_once() {
    let port = asks_for_password();
    let store = |mode: &str| quick().store(format!("postgres://app@127.0.0.1:{port}/e?sslmode={mode}"));
    let said = refuses(&store("require"), &["TLS", "sslmode=disable"]);
    assert!(!said.contains("cannot be reached yet"), "{said}");
    refuses(&store("verify-ca"), &["verify-ca", "verify-full"]);
}

#[test]
fn notices_of_the_database_are_not_shown() {
    let postgres = Postgres::start();
    let options = quick().store(postgres.url()).env("EVERBEAT_TELEMETRY__LOG", "info");
    // The second start meets what the first one made.
    drop(Server::start(options.clone()));
    let log = Server::start(options).log();
    assert!(!log.contains("NOTICE") && !log.contains("already exists"), "{log}");
}

#[test]
fn a_file_of_another_program_is_refused_and_stays_as_it_is() {
    let options = quick();
    let path = options.data_dir.with_extension("txt");
    fs::write(&path, "my diary\n".repeat(100)).expect("written");
    let before = fs::read(&path).expect("its bytes");
    refuses(&options.clone().store(format!("sqlite://{}", path.display())), &["no SQLite database", "store.url"]);
    assert_eq!(fs::read(&path).expect("its bytes"), before);
}

#[test]
fn an_open_data_folder_is_warned_of_and_its_files_are_closed() {
    let options = quick();
    fs::create_dir(&options.data_dir).expect("a folder");
    fs::set_permissions(&options.data_dir, fs::Permissions::from_mode(0o755)).expect("an open one");
    let server = Server::start(options);
    let log = server.log();
    let remedy = format!("chmod 700 {}", server.options.data_dir.display());
    assert!(log.contains("other users can look into the data folder") && log.contains(&remedy), "{log}");
    for file in fs::read_dir(&server.options.data_dir).expect("the folder").flatten() {
        let mode = file.metadata().expect("its mode").permissions().mode() & 0o077;
        assert_eq!(mode, 0, "{}", file.path().display());
    }
    let output = server.cli(&["config", "--data-dir", &server.options.data_dir.display().to_string()]);
    assert!(stdout(&output).contains("store.url_file"), "{}", stdout(&output));
}
