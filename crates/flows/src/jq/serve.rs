use super::program::Program;
use super::{Answer, Hello, limits};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Not left to the system's default, so that a program that can recurse on one machine can on all.
const STACK_BYTES: usize = 64 << 20;
/// Records are bounded by whoever sends them; a longer line is not theirs.
const MOST_LINE_BYTES: u64 = 256 << 20;

/// The loop of an evaluator process: reads a program and then batches of records from stdin, and answers on stdout, until
/// stdin ends. The process puts itself under limits first, and may die of what it evaluates.
pub fn serve() -> io::Result<()> {
    limits::limit_self()?;
    let thread = std::thread::Builder::new().name("jq".to_string()).stack_size(STACK_BYTES);
    let served = thread.spawn(|| {
        let mut input = BufReader::with_capacity(128 << 10, io::stdin().lock());
        let mut output = BufWriter::with_capacity(128 << 10, io::stdout().lock());
        converse(&mut input, &mut output)
    })?;
    served.join().unwrap_or_else(|_| Err(io::Error::other("the evaluator broke off")))
}

fn converse(input: &mut impl BufRead, output: &mut impl Write) -> io::Result<()> {
    limits::grant_batch()?;
    let mut line = Vec::new();
    if !next_line(input, &mut line)? {
        return Ok(());
    }
    let Hello { program } = serde_json::from_slice(&line)?;
    let program = match Program::compile(&program) {
        Ok(program) => program,
        Err(problem) => return say(output, &Answer::Error(problem)).and_then(|()| output.flush()),
    };
    say(output, &Answer::Ok(Vec::new()))?;
    output.flush()?;
    while next_line(input, &mut line)? {
        let count: u64 = serde_json::from_slice(&line)?;
        limits::grant_batch()?;
        for _ in 0..count {
            if !next_line(input, &mut line)? {
                return Ok(());
            }
            let outputs = catch_unwind(AssertUnwindSafe(|| program.outputs(&line)));
            let outputs = outputs.unwrap_or_else(|_| Err("jq: the program broke off".to_string()));
            say(output, &outputs.map_or_else(Answer::Error, Answer::Ok))?;
        }
        output.flush()?;
    }
    Ok(())
}

/// Whether there was one.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    input.by_ref().take(MOST_LINE_BYTES).read_until(b'\n', line)?;
    Ok(line.pop() == Some(b'\n'))
}

fn say(output: &mut impl Write, answer: &Answer) -> io::Result<()> {
    serde_json::to_writer(&mut *output, answer)?;
    output.write_all(b"\n")
}
