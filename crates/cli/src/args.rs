//! The command line: every command, and what concerns all of them. It is long, and one list: the help is this list.

mod check;
mod execution;
mod job;
mod ls;
mod pool;
mod schedule;

pub(crate) use check::{CheckAction, CheckFilterArgs, CheckPutArgs, PingArgs};
pub(crate) use execution::{Assignment, ExecutionAction, GraphAction, WaitFor};
pub(crate) use job::{BeatArgs, BeatStatus, LogsArgs, RecoveryAction, RunArgs, Stream};
pub(crate) use ls::{Ls, PageArgs};
pub(crate) use pool::PoolAction;
pub(crate) use schedule::{FlowAction, PutArgs, ScheduleAction, ScheduleVerb};

use crate::config::Flags;
use crate::term::Color;
use clap::parser::ValueSource;
use clap::{ArgMatches, Parser, Subcommand, ValueEnum};
use everbeat_model::time::parse_duration;
use std::path::PathBuf;
use std::time::Duration;

/// Durable work that always knows what is alive.
#[derive(Debug, Parser)]
#[command(name = "everbeat", version, propagate_version = false, max_term_width = 100)]
#[command(after_help = "Start a server with `everbeat serve`, then try in another terminal:\n  \
    everbeat run -- sh -c 'echo hello; sleep 60; echo done'   a job: it outlives the server\n  \
    everbeat submit echo --input '\"hello\"' --wait             a run of a task\n  \
    everbeat ls jobs                                          what there is\n\n\
    Tasks of your own begin with `everbeat init python my-tasks`.\n\n\
    Exit codes: 0 done, 1 the work failed, 2 usage, 3 server or API error, 4 lost, 5 cancelled, 124 wait timed out; \
    `everbeat run` ends with its command's own, and with 125 for errors of Everbeat's own")]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) remote: Remote,
    /// How data is printed; with json, stdout carries data only
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: Output,
    /// Print only errors and what was asked for
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// When to use colours; NO_COLOR counts too
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: Color,
}

/// The server to talk to.
#[derive(Debug, clap::Args)]
pub(crate) struct Remote {
    /// Address of the server
    #[arg(long, global = true, env = "EVERBEAT_URL", default_value = "http://127.0.0.1:7117", value_name = "URL")]
    pub(crate) url: String,
    /// Token to show to the server
    #[arg(long, global = true, env = "EVERBEAT_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    #[arg(skip)]
    pub(crate) origin: UrlOrigin,
}

/// Where the address of the server was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UrlOrigin {
    #[default]
    Default,
    Variable,
    Flag,
}

impl UrlOrigin {
    pub(crate) fn of(matches: &ArgMatches) -> UrlOrigin {
        match matches.value_source("url") {
            Some(ValueSource::CommandLine) => UrlOrigin::Flag,
            Some(ValueSource::EnvVariable) => UrlOrigin::Variable,
            _ => UrlOrigin::Default,
        }
    }

    /// What to correct, if the address is wrong.
    pub(crate) fn name(self) -> &'static str {
        match self {
            UrlOrigin::Flag | UrlOrigin::Default => "--url",
            UrlOrigin::Variable => "EVERBEAT_URL",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    #[default]
    Table,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a server
    #[command(after_help = "Examples:\n  \
        everbeat serve                                      SQLite in ./everbeat-data, on 127.0.0.1:7117\n  \
        everbeat serve --config /etc/everbeat.toml\n  \
        everbeat serve --store postgres://app@db/everbeat   many replicas may share it\n  \
        EVERBEAT_REPLICA__SLOTS=8 everbeat serve            every key of the file can be set like this\n\n\
        The first SIGTERM or SIGINT lets work finish for replica.drain_grace and then leaves; the second stops at once.")]
    Serve {
        #[command(flatten)]
        flags: Flags,
        /// Let a copied or moved data folder live on its own: a new host id, and none of the original's jobs
        #[arg(long)]
        adopt_data: bool,
    },
    /// Begin a project: write a folder of tasks that runs at once
    #[command(after_help = "Example:\n  everbeat init python my-tasks\n\n\
        Writes tasks.py, everbeat.toml, test_tasks.py, requirements.txt, README.md and .gitignore, and prints what to \
        type next. Never overwrites a file.")]
    Init {
        /// The language of the tasks
        language: Language,
        /// Where to write; made if it is not there
        #[arg(default_value = ".")]
        folder: PathBuf,
    },
    /// Run a command that outlives client and server, and follow its output
    #[command(override_usage = "everbeat run [OPTIONS] [--] <CMD>...")]
    #[command(after_help = "Examples:\n  \
        everbeat run -- python3 train.py --epochs 10\n  \
        everbeat run -d --name nightly --deadline 2h -- ./backup.sh   prints the job's id\n  \
        everbeat run -e LANG=C -e HOME -- make test\n  \
        sort names.txt | everbeat run -i -- ./import.sh               its stdin is what comes on this one\n  \
        everbeat run -- sh -c 'ls *.csv | wc -l'                      a shell, where one is wanted\n\n\
        The command belongs to the server, not to this terminal. It goes on when this client is interrupted (see it \
        again with `everbeat logs -f ID`), and when the server is killed, restarted or upgraded. `everbeat cancel ID` \
        stops it.\n\n\
        It reads nothing from stdin, unless -i hands over what comes there, all of it before the command begins. Its environment is what -e gives, beside the server's HOME, USER, LANG and the \
        like; if the server is on this machine, PATH is the one from here.\n\n\
        Exit codes: the command's own; 128 + N if signal N killed it; 125 Everbeat's own error (server away, job \
        refused or lost); 126 the command cannot be executed; 127 it was not found; 2 usage")]
    Run(RunArgs),
    /// Print what a job wrote to stdout and stderr, or the log of any other run
    #[command(after_help = "Examples:\n  \
        everbeat logs -f ID\n  \
        everbeat logs -f --exit-code ID      and end as the job does, like `everbeat run`\n  \
        everbeat logs --tail 20 --stream stderr ID")]
    Logs(LogsArgs),
    /// Submit a run of a task
    #[command(after_help = "Examples:\n  \
        everbeat submit echo --input '{\"hello\": \"world\"}' --wait\n  \
        everbeat submit sleep --input '{\"ms\": 5000}' --priority 10\n  \
        everbeat submit report --input @input.json --run-at 2026-12-01T06:00:00Z\n  \
        everbeat submit import --policy '{\"deadline\": \"10m\", \"max_attempts\": 5}' --unique-key import\n  \
        everbeat submit echo --wait -o json | jq .result\n  \
        everbeat submit crawl --follow | jq .url                    each item as the task streams it")]
    Submit(SubmitArgs),
    /// List what there is
    #[command(alias = "list")]
    Ls {
        #[command(subcommand)]
        what: Ls,
    },
    /// Show a job or a run with its attempts, an execution, a pool, a worker, a replica or a verdict
    Show {
        /// Id of a job, run, execution, worker, replica or verdict; its last characters or the name of a job or pool will do
        id: String,
    },
    /// Say why something is in the state it is in, and what could be done
    Explain {
        /// Id of a job, run, execution, replica or verdict; its last characters or a job's name will do
        id: String,
    },
    /// Wait until a job or a run is finished, and end with 0, 1, 4 or 5
    #[command(after_help = "Examples:\n  \
        everbeat wait ID --timeout 10m\n  \
        everbeat wait nightly                the job of that name\n\n\
        What is waited for and how it ended is told on stderr; stdout has the result alone, as JSON.")]
    Wait {
        /// Id of a job or a run; its last characters or a job's name will do
        id: String,
        /// Give up after so long, with exit code 124 [default: never]
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        timeout: Option<Duration>,
    },
    /// Ask unfinished jobs or runs to stop
    #[command(after_help = "Examples:\n  \
        everbeat cancel ID ID\n  \
        everbeat cancel --queue mail --state ready          how many that would be\n  \
        everbeat cancel --queue mail --state ready --all    and do it")]
    Cancel {
        /// Ids of jobs or runs; their last characters or a job's name will do
        #[arg(value_name = "ID")]
        ids: Vec<String>,
        /// Only those in this state [default: all unfinished]
        #[arg(long, value_parser = ["scheduled", "ready", "running"])]
        state: Option<String>,
        #[command(flatten)]
        which: Which,
    },
    /// Open finished jobs or runs again, with all their tries
    #[command(after_help = "Examples:\n  \
        everbeat retry ID ID\n  \
        everbeat retry --task import          how many failed ones that would be\n  \
        everbeat retry --task import --all    and do it")]
    Retry {
        /// Ids of jobs or runs; their last characters or a job's name will do
        #[arg(value_name = "ID")]
        ids: Vec<String>,
        /// Only those in this state [default: failed]
        #[arg(long, value_parser = ["failed", "cancelled", "succeeded"])]
        state: Option<String>,
        #[command(flatten)]
        which: Which,
    },
    /// Remove a finished job: its folder, and what the store knows of it
    Rm {
        /// Id of a job
        id: String,
        /// Only say what would be removed
        #[arg(long)]
        dry_run: bool,
    },
    /// Apply a graph, or look at one
    Graph {
        #[command(subcommand)]
        action: GraphAction,
    },
    /// Start an execution of a graph, set and get its values, look at it
    #[command(after_help = "Examples:\n  \
        everbeat execution start order --set price=5 --set customer=ann\n  \
        everbeat execution set ID count=3 'address={\"city\": \"Bern\"}'\n  \
        everbeat execution get ID total --wait any --timeout 30s\n  \
        everbeat ls executions --graph order --where 'count.gte:3' --sort -count")]
    Execution {
        #[command(subcommand)]
        action: ExecutionAction,
    },
    /// Write flows from files, ask for their runs, look at them
    #[command(after_help = "Examples:\n  \
        everbeat flow apply flows/*.toml\n  \
        everbeat flow diff flows/*.toml      what applying them would change\n  \
        everbeat flow trigger products --wait\n  \
        everbeat flow backfill products --from 2026-01-01 --to 2026-02-01\n  \
        everbeat flow next products; everbeat flow runs products")]
    Flow {
        #[command(subcommand)]
        action: FlowAction,
    },
    /// Let a task be due again and again, look at what is
    #[command(after_help = "Examples:\n  \
        everbeat schedule put report --task report --every 15m\n  \
        everbeat schedule put nightly --task backup --cron '30 2 * * *' --tz Europe/Berlin\n  \
        everbeat schedule next nightly; everbeat schedule runs nightly")]
    Schedule {
        #[command(subcommand)]
        action: ScheduleAction,
    },
    /// Watch jobs outside by their pings: say what is expected, look at how they stand
    #[command(after_help = "Examples:\n  \
        everbeat check put backup --period 1d --grace 2h\n  \
        everbeat check apply checks/*.toml; everbeat check diff checks/*.toml\n  \
        everbeat check ls --state down; everbeat check pings backup\n\n\
        Jobs ping with `everbeat ping NAME`, or by asking for URL/ping/NAME.")]
    Check {
        #[command(subcommand)]
        action: CheckAction,
    },
    /// From a job outside: say that it succeeded, or what else became of it
    #[command(after_help = "Examples, in a crontab:\n  \
        30 2 * * * backup.sh && everbeat --quiet ping backup\n  \
        30 2 * * * everbeat -q ping backup --start; backup.sh; everbeat -q ping backup --exit $?\n\n\
        The first ping of a name makes its check: one success a day, with an hour of grace.")]
    Ping(PingArgs),
    /// Have every flow that is due looked at, as an outside scheduler does
    #[command(after_help = "Example, in a crontab, where the server has flows.ticker = false:\n  \
        * * * * * everbeat --quiet heartbeat")]
    Heartbeat,
    /// Look at the jobs of the server's host, resume failed ones, clean old ones
    Recovery {
        #[command(subcommand)]
        action: RecoveryAction,
    },
    /// From inside a job: tell how far it is
    #[command(after_help = "Examples, in a command that `everbeat run` started:\n  \
        everbeat beat --done 3 --total 10 --note 'chapter 3'\n  \
        everbeat beat --status waiting")]
    Beat(BeatArgs),
    /// Act on a replica
    Replica {
        #[command(subcommand)]
        action: ReplicaAction,
    },
    /// Act on a pool of worker processes
    #[command(after_help = "Examples:\n  \
        everbeat pool scale ml 8          until its server ends; the file has the last word after that\n  \
        everbeat pool drain ml            it takes no more work\n  \
        everbeat pool resume ml\n  \
        everbeat pool restart ml          one worker after the other, none of their work is lost\n  \
        everbeat pool sessions ml         which worker holds which session\n\n\
        A pool belongs to the server that answers.")]
    Pool {
        #[command(subcommand)]
        action: PoolAction,
    },
    /// Act on a worker
    #[command(after_help = "Examples:\n  \
        everbeat ls workers\n  \
        everbeat worker ping ID           does it answer, and how fast\n  \
        everbeat worker dump ID           where its threads stand\n  \
        everbeat worker restart ID        another takes its place first")]
    Worker {
        #[command(subcommand)]
        action: WorkerAction,
    },
    /// Act on a queue
    Queue {
        #[command(subcommand)]
        action: QueueAction,
    },
    /// Check the guarantees over all that is stored; exit code 1 if one is broken
    Invariants,
    /// Read the log of events
    Events(EventsArgs),
    /// Check the configuration and show what is in force
    Config(ConfigArgs),
    /// Measure a server on this machine, on SQLite and on PostgreSQL; prints JSON
    #[command(after_help = "Examples:\n  everbeat bench --postgres postgres://postgres@127.0.0.1:5432/postgres\n  \
        everbeat bench --no-sqlite --jobs 0 --python venv/bin/python    pools and links only\n\n\
        The database may be one in use: the measurement keeps to schemas of its own and drops them at the end.")]
    Bench(crate::bench::BenchArgs),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  everbeat completions bash > ~/.local/share/bash-completion/completions/everbeat"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Language {
    Python,
}

/// All that fit, in place of ids.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Which {
    /// Only those of this task
    #[arg(long)]
    pub(crate) task: Option<String>,
    /// Only those in this queue
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// Only those of this kind
    #[arg(long, value_parser = ["task", "node", "flow", "job"])]
    pub(crate) kind: Option<String>,
    /// Do it to all that fit; without it, only say how many they are
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    #[command(flatten)]
    pub(crate) flags: Flags,
    /// Print the reference page of all keys instead
    #[arg(long, hide = true)]
    pub(crate) markdown: bool,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("awaited").args(["wait", "follow"]).multiple(true))]
pub(crate) struct SubmitArgs {
    /// Name of the task; `everbeat ls tasks` lists them
    pub(crate) task: String,
    /// Input: JSON, @FILE to read it from a file, or - to read it from stdin
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) input: Option<String>,
    /// Queue to wait in [default: default]
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// A higher priority is taken first [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) priority: Option<i16>,
    /// Not before this time: RFC 3339, or a duration from now
    #[arg(long, value_name = "TIME")]
    pub(crate) run_at: Option<String>,
    /// What differs from the configured policy, as a JSON object
    #[arg(long, value_name = "JSON")]
    pub(crate) policy: Option<String>,
    /// Only one unfinished run may have this key; if there is one, it is the answer
    #[arg(long, value_name = "KEY")]
    pub(crate) unique_key: Option<String>,
    /// The session that the run belongs to: one worker of a pool performs the runs of a session
    #[arg(long, value_name = "KEY")]
    pub(crate) session: Option<String>,
    /// `strict` waits for the worker of the session; `hint` takes another one while that is busy [default: hint]
    #[arg(long, value_name = "AFFINITY", requires = "session", value_parser = ["hint", "strict"])]
    pub(crate) session_affinity: Option<String>,
    /// The session is over after so long without a run [default: as its pool says]
    #[arg(long, value_name = "DURATION", requires = "session")]
    pub(crate) session_ttl: Option<String>,
    /// Submitting again with the same key and content makes no second run
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
    /// Accept a task that nobody has offered yet
    #[arg(long)]
    pub(crate) accept_unknown: bool,
    /// Wait until the run is finished: stdout has its result alone, and the exit code tells how it ended
    #[arg(long)]
    pub(crate) wait: bool,
    /// Like --wait, and print each item that the run streams as it comes: one line of JSON each, then the result. With
    /// `-o json` each is an object with `seq`, `attempt` and `item`, and the last line is the run
    #[arg(long)]
    pub(crate) follow: bool,
    /// With --wait or --follow: give up after so long, with exit code 124 [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "awaited")]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ReplicaAction {
    /// Let it finish its work and leave
    Drain {
        /// Id of a replica
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkerAction {
    /// Ping it now, and say how long its answer took
    Ping {
        /// Id of a worker; its last characters will do
        id: String,
    },
    /// Replace it: it goes when another stands in for it and its work is done
    Restart {
        /// Id of a worker; its last characters will do
        id: String,
    },
    /// Let it finish what it has, and go
    Drain {
        /// Id of a worker; its last characters will do
        id: String,
    },
    /// Print the stacks of its threads
    Dump {
        /// Id of a worker; its last characters will do
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum QueueAction {
    /// Take no more runs from it; what runs goes on
    Pause {
        /// Name of the queue
        name: String,
    },
    /// Take runs from it again
    Resume {
        /// Name of the queue
        name: String,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct EventsArgs {
    /// Go on as events happen, until interrupted
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only those after the event with this id
    #[arg(long, value_name = "N")]
    pub(crate) after: Option<u64>,
    /// Only of this kind, like run.failed, or of all kinds of a noun, like run; may be repeated
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Vec<String>,
    /// Only of what has this id or name; may be repeated
    #[arg(long, value_name = "ID")]
    pub(crate) subject: Vec<String>,
    /// At most so many
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) limit: Option<u64>,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|invalid| format!("{} ({})", invalid.problem, invalid.hint))
}
