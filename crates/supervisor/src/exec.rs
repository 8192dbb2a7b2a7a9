//! The step from a copy of this process to the program of a job or a worker. By the kernel's own call: the C library's would
//! hand a file that is no program to a shell.
#![allow(unsafe_code)] // execve(2), once.

use std::ffi::{CString, c_char};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::ptr;

/// All that the kernel is told, made ready before the fork: after it no memory may be taken.
pub(crate) struct Program {
    candidates: Vec<CString>,
    arguments: Pointers,
    environment: Pointers,
}

impl Program {
    /// A bare name is looked up in `path`.
    pub(crate) fn new(
        command: &[String],
        path: &str,
        environment: impl Iterator<Item = (String, std::ffi::OsString)>,
    ) -> io::Result<Program> {
        let name = command.first().map(String::as_str).unwrap_or_default();
        let candidates: Vec<CString> = match name.contains('/') {
            true => vec![text(name)?],
            false => {
                let found = path.split(':').map(|folder| Path::new(folder).join(name).into_os_string().into_vec());
                found.map(CString::new).collect::<Result<_, _>>()?
            }
        };
        let arguments: Vec<CString> = command.iter().map(|part| text(part)).collect::<io::Result<_>>()?;
        let variable = |(name, value): (String, std::ffi::OsString)| {
            let mut line = name.into_bytes();
            line.push(b'=');
            line.extend(value.into_vec());
            CString::new(line)
        };
        let environment: Vec<CString> = environment.map(variable).collect::<Result<_, _>>()?;
        Ok(Program { candidates, arguments: Pointers::to(arguments), environment: Pointers::to(environment) })
    }

    /// Returns only if it could not.
    pub(crate) fn become_it(&self) -> io::Error {
        let mut why = libc::ENOENT;
        for candidate in &self.candidates {
            // SAFETY: all three are terminated as the kernel wants them, and owned by `self`.
            unsafe { libc::execve(candidate.as_ptr(), self.arguments.as_ptr(), self.environment.as_ptr()) };
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) if self.candidates.len() > 1 => {}
                // One that may be run may follow.
                Some(libc::EACCES) => why = libc::EACCES,
                other => return io::Error::from_raw_os_error(other.unwrap_or(libc::ENOENT)),
            }
        }
        io::Error::from_raw_os_error(why)
    }
}

fn text(part: &str) -> io::Result<CString> {
    Ok(CString::new(part)?)
}

/// Says, with the kernel's number, why a program could not be executed in a working folder, to which its name may be
/// relative. A bare name was looked up in `path`.
pub(crate) fn why(name: &str, path: &str, folder: &Path, error: &io::Error) -> (String, Option<i32>) {
    let errno = error.raw_os_error();
    let absent = matches!(errno, Some(libc::ENOENT | libc::ENOTDIR));
    let forbidden = errno == Some(libc::EACCES);
    let is_bare = !name.contains('/');
    let exists = match is_bare {
        true => path.split(':').any(|searched| folder.join(searched).join(name).is_file()),
        false => folder.join(name).exists(),
    };
    // A folder of the PATH that may not be searched is told as a program that may not be run.
    if is_bare && !exists && (absent || forbidden) {
        return (format!("program {name:?} was not found in PATH"), Some(libc::ENOENT));
    }
    let why = match exists {
        true if absent => format!("program {name:?} needs an interpreter that does not exist: {error}"),
        _ if forbidden => format!("program {name:?} is not executable: {error}"),
        _ => format!("program {name:?}: {error}"),
    };
    (why, errno)
}

/// Texts, and the list of pointers to them that ends with none.
struct Pointers {
    _owned: Vec<CString>,
    pointers: Vec<*const c_char>,
}

// SAFETY: the pointers lead into texts that are owned here, never change, and stay where they are when this moves.
unsafe impl Send for Pointers {}
// SAFETY: as above.
unsafe impl Sync for Pointers {}

impl Pointers {
    fn to(owned: Vec<CString>) -> Pointers {
        let pointers = owned.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect();
        Pointers { _owned: owned, pointers }
    }

    fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}
