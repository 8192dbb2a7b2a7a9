use crate::Trouble;
use std::io::{self, ErrorKind};

/// Does work that blocks in a thread for such work. Dropping the future does not stop the work.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Trouble> + Send + 'static,
) -> Result<T, Trouble> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|broken| Err(broke_off(&broken)))
}

pub(crate) fn broke_off(error: &tokio::task::JoinError) -> Trouble {
    Trouble::permanent(format!("a connector broke off: {error}; this is a defect of Everbeat"))
}

/// What an error of the file system says about a path.
pub(crate) fn of_io(what: &str, path: &std::path::Path, error: &io::Error) -> Trouble {
    let path = path.display();
    match error.kind() {
        ErrorKind::NotFound => {
            Trouble::permanent(format!("cannot {what} {path:?}: it does not exist; create it first"))
        }
        ErrorKind::PermissionDenied => {
            Trouble::permanent(format!("cannot {what} {path:?}: permission denied; give the server's user that right"))
        }
        ErrorKind::IsADirectory | ErrorKind::NotADirectory | ErrorKind::InvalidFilename => {
            Trouble::permanent(format!("cannot {what} {path:?}: {error}"))
        }
        _ => Trouble::transient(format!("cannot {what} {path:?}: {error}")),
    }
}
