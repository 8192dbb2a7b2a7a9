//! One line on stderr that shows how far the work is, while a person waits for it.

use crate::client::{Client, escape};
use crate::clock::Stopwatch;
use crate::commands::{noun as noun_of, progress};
use crate::output::{plain, rough};
use crate::term;
use serde_json::Value;
use std::io::{self, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Whoever waits less needs no company.
const BEFORE: Duration = Duration::from_secs(1);
const FRAME: Duration = Duration::from_millis(150);
/// In frames: how often the server is asked.
const ASK_EVERY: usize = 7;
/// A server that is slow to answer holds the line still for so long at most.
const ASK_WITHIN: Duration = Duration::from_secs(2);
const FRAMES: [&str; 8] = ["⠋", "⠙", "⠸", "⠴", "⠦", "⠇", "⠏", "⠉"];
const ASCII_FRAMES: [&str; 4] = ["|", "/", "-", "\\"];
const BAR: usize = 20;

#[derive(Default)]
struct Line {
    drawn: bool,
    /// Somebody else's output has begun: the line is theirs.
    over: bool,
}

static LINE: Mutex<Line> = Mutex::new(Line { drawn: false, over: false });

/// Shows the line until it is dropped.
pub(crate) struct Spinner {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Spinner {
    /// For a run or job, whose state and progress it shows. Without a terminal it does nothing. Which of the two it is, the
    /// server knows, unless the caller does.
    pub(crate) fn of_run(client: &Client, noun: Option<&'static str>, id: &str) -> Spinner {
        let (client, path) = (client.clone(), format!("/api/v1/runs/{}", escape(id)));
        let short = tail(id).to_string();
        Spinner::start(move |known: &mut Value, ask| {
            if ask && let Ok(run) = client.get_within(&path, &[], ASK_WITHIN) {
                *known = run.value;
            }
            let noun = noun.unwrap_or_else(|| if known.is_null() { "" } else { noun_of(known) });
            format!("{noun} {short}  {}", told(known)).trim_start().to_string()
        })
    }

    /// For anything that is waited for without more to tell.
    pub(crate) fn of(what: String) -> Spinner {
        Spinner::start(move |_, _| what.clone())
    }

    fn start(tell: impl Fn(&mut Value, bool) -> String + Send + 'static) -> Spinner {
        if !term::style().live {
            return Spinner { stop: None, thread: None };
        }
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let begun = Stopwatch::start();
            let mut known = Value::Null;
            let mut pause = BEFORE;
            for frame in 0_usize.. {
                match stopped.recv_timeout(pause) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return,
                }
                let said = tell(&mut known, frame.is_multiple_of(ASK_EVERY));
                if !draw(frame, &format!("{said}  {}", rough(begun.elapsed()))) {
                    return;
                }
                pause = FRAME;
            }
        });
        Spinner { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _it_has_nothing_to_say = thread.join();
            clear(&mut line());
        }
    }
}

/// Writes something in the line's place; it is drawn again below.
pub(crate) fn aside(write: impl FnOnce()) {
    let mut line = line();
    clear(&mut line);
    write();
}

/// Gives the line up for good: from now on the terminal belongs to a job's output.
pub(crate) fn give_way() {
    let mut line = line();
    clear(&mut line);
    line.over = true;
}

/// The last characters of an id: they tell the young apart, whose first ones are their time.
pub(crate) fn tail(id: &str) -> &str {
    match id.len().checked_sub(8) {
        Some(start) if id.is_char_boundary(start) => &id[start..],
        _ => id,
    }
}

fn line() -> MutexGuard<'static, Line> {
    LINE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn clear(line: &mut Line) {
    if std::mem::take(&mut line.drawn) {
        let _nobody_looks = write!(io::stderr().lock(), "\r\x1b[K");
    }
}

/// Answers whether the line is still ours.
fn draw(frame: usize, text: &str) -> bool {
    let mut line = line();
    if line.over {
        return false;
    }
    let sign = match term::style().unicode {
        true => FRAMES[frame % FRAMES.len()],
        false => ASCII_FRAMES[frame % ASCII_FRAMES.len()],
    };
    let room = usize::from(term::width(io::stderr())).saturating_sub(3);
    let text: String = text.chars().filter(|c| !c.is_control()).take(room).collect();
    let mut stderr = io::stderr().lock();
    let _nobody_looks = write!(stderr, "\r\x1b[K{sign} {text}").and_then(|()| stderr.flush());
    line.drawn = true;
    true
}

/// `running  [######--------------] 3/10 chapter 3`
fn told(run: &Value) -> String {
    let life = run["liveness"].as_str().filter(|life| matches!(*life, "suspect" | "stalled"));
    let state = life.map_or_else(|| plain(&run["state"]), ToString::to_string);
    let progress = &run["progress"];
    let bar = match (progress["done"].as_f64(), progress["total"].as_f64()) {
        (Some(done), Some(total)) if total > 0.0 => bar(done / total),
        _ => String::new(),
    };
    let state = if state.is_empty() { "waiting".to_string() } else { state };
    [state, bar, self::progress(progress)].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
}

fn bar(part: f64) -> String {
    let full = (0..BAR).filter(|place| (*place as f64) < part * BAR as f64).count();
    let (done, open) = if term::style().unicode { ('█', '░') } else { ('#', '-') };
    format!("[{}{}]", done.to_string().repeat(full), open.to_string().repeat(BAR - full))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn progress_is_told_with_a_bar_where_its_end_is_known() {
        let check = |run: Value, expected: &str| assert_eq!(told(&run), expected, "{run}");
        check(Value::Null, "waiting");
        check(json!({"state": "ready"}), "ready");
        check(json!({"state": "running", "liveness": "suspect"}), "suspect");
        let half = json!({"state": "running", "liveness": "alive", "progress": {"done": 5, "total": 10, "note": "x"}});
        check(half, "running  [##########----------]  5/10 x");
        check(json!({"state": "running", "progress": {"done": 5}}), "running  5");
    }

    #[test]
    fn an_id_is_folded_to_its_last_eight_characters() {
        assert_eq!(tail("0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"), "2e3f4a5b");
        assert_eq!(tail("short"), "short");
    }
}
