//! Every route of the API, and beside each what a token must be good for to be let through to it.

use crate::Scope::{self, Admin, Heartbeat, Metrics, Read, Submit};
use crate::app::App;
use crate::auth::looks_only;
use crate::{
    checks, events, executions, flows, graphs, health, home, ids, invariants, jobs, logs, metrics, nodes, openapi,
    outputs, pings, pools, queues,
};
use crate::{recovery, replicas, runs, schedules, sentinels, sessions, submit, tasks, values, verdicts, workers};
use axum::Router;
use axum::extract::{MatchedPath, NestedPath, Request};
use axum::http::Method;
use std::collections::BTreeMap;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::PathItem;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

/// Handlers with their descriptions. None can be added without a word on who may reach it.
pub(crate) struct Routes {
    router: OpenApiRouter<App>,
    needs: Needs,
}

impl Routes {
    pub(crate) fn all() -> Routes {
        Routes { router: OpenApiRouter::with_openapi(openapi::empty()), needs: Needs::default() }
            // Probes must answer whoever runs this process, and say nothing worth protecting.
            .open(routes!(health::livez))
            .open(routes!(health::readyz))
            .guarded(Metrics, routes!(metrics::get_metrics))
            .guarded(Read, routes!(home::home))
            .guarded(Read, routes!(openapi::describe))
            // Runs.
            .guarded(Read, routes!(runs::list_runs))
            .guarded(Submit, routes!(submit::create_run))
            .guarded(Submit, routes!(submit::create_runs))
            .guarded(Read, routes!(runs::get_run))
            .guarded(Read, routes!(runs::list_attempts))
            .guarded(Read, routes!(runs::explain_run))
            .guarded(Read, routes!(logs::get_logs))
            .guarded(Read, routes!(outputs::get_output))
            .guarded(Submit, routes!(runs::cancel_run))
            .guarded(Submit, routes!(runs::retry_run))
            // Jobs.
            .guarded(Read, routes!(jobs::list_jobs))
            .guarded(Submit, routes!(jobs::create_job))
            .guarded(Read, routes!(jobs::get_job))
            .guarded(Submit, routes!(jobs::delete_job))
            .guarded(Read, routes!(logs::get_job_logs))
            .guarded(Submit, routes!(jobs::cancel_job))
            .guarded(Submit, routes!(jobs::retry_job))
            // Graphs and their executions.
            .guarded(Read, routes!(graphs::list_graphs))
            .guarded(Submit, routes!(graphs::apply_graph))
            .guarded(Read, routes!(graphs::get_graph))
            .guarded(Read, routes!(graphs::draw_graph))
            .guarded(Read, routes!(graphs::analyse_graph))
            .guarded(Read, routes!(executions::list_executions))
            .guarded(Submit, routes!(executions::start_execution))
            .guarded(Read, routes!(executions::count_executions))
            .guarded(Read, routes!(executions::get_execution))
            .guarded(Read, routes!(executions::draw_execution))
            .guarded(Read, routes!(executions::summarise_execution))
            .guarded(Read, routes!(values::list_history))
            .guarded(Submit, routes!(executions::archive_execution))
            .guarded(Submit, routes!(executions::unarchive_execution))
            .guarded(Submit, routes!(nodes::retry_node))
            .guarded(Submit, routes!(nodes::abandon_node))
            .guarded(Submit, routes!(values::set_values))
            .guarded(Read, routes!(values::get_value))
            .guarded(Submit, routes!(values::unset_value))
            // Schedules and flows.
            .guarded(Read, routes!(schedules::list_schedules))
            .guarded(Read, routes!(schedules::get_schedule))
            .guarded(Submit, routes!(schedules::put_schedule))
            .guarded(Submit, routes!(schedules::delete_schedule))
            .guarded(Submit, routes!(schedules::enable_schedule))
            .guarded(Submit, routes!(schedules::disable_schedule))
            .guarded(Submit, routes!(schedules::trigger_schedule))
            .guarded(Read, routes!(schedules::list_schedule_runs))
            .guarded(Read, routes!(schedules::next_of_schedule))
            // A flow reaches files and other servers with the rights of this one.
            .guarded(Read, routes!(flows::list_flows))
            .guarded(Read, routes!(flows::get_flow))
            .guarded(Admin, routes!(flows::put_flow))
            .guarded(Admin, routes!(flows::delete_flow))
            .guarded(Admin, routes!(flows::enable_flow))
            .guarded(Admin, routes!(flows::disable_flow))
            .guarded(Submit, routes!(flows::trigger_flow))
            .guarded(Admin, routes!(flows::test_flow))
            .guarded(Read, routes!(flows::list_flow_runs))
            .guarded(Read, routes!(flows::next_of_flow))
            .guarded(Heartbeat, routes!(flows::heartbeat))
            // Checks: whoever may ping can make one, and cannot change what is expected.
            .guarded(Read, routes!(checks::list_checks))
            .guarded(Read, routes!(checks::get_check))
            .guarded(Read, routes!(pings::list_pings))
            .guarded(Submit, routes!(checks::put_check))
            .guarded(Submit, routes!(checks::delete_check))
            .guarded(Submit, routes!(checks::pause_check))
            .guarded(Submit, routes!(checks::resume_check))
            .guarded(Heartbeat, routes!(pings::ping))
            .guarded(Heartbeat, routes!(pings::get_ping))
            .guarded(Heartbeat, routes!(pings::signal))
            .guarded(Heartbeat, routes!(pings::get_signal))
            // What everybody shares.
            .guarded(Read, routes!(queues::list_queues))
            .guarded(Admin, routes!(queues::pause_queue))
            .guarded(Admin, routes!(queues::resume_queue))
            .guarded(Read, routes!(replicas::list_replicas))
            .guarded(Read, routes!(replicas::get_replica))
            .guarded(Admin, routes!(replicas::drain_replica))
            .guarded(Read, routes!(pools::list_pools))
            .guarded(Read, routes!(pools::get_pool))
            .guarded(Read, routes!(pools::list_workers_of_pool))
            .guarded(Read, routes!(sessions::list_sessions))
            .guarded(Admin, routes!(sessions::end_session))
            .guarded(Admin, routes!(pools::scale_pool))
            .guarded(Admin, routes!(pools::drain_pool))
            .guarded(Admin, routes!(pools::resume_pool))
            .guarded(Admin, routes!(pools::restart_pool))
            .guarded(Read, routes!(workers::list_workers))
            .guarded(Read, routes!(workers::get_worker))
            .guarded(Admin, routes!(workers::ping_worker))
            .guarded(Admin, routes!(workers::restart_worker))
            .guarded(Admin, routes!(workers::drain_worker))
            .guarded(Admin, routes!(workers::dump_worker))
            .guarded(Read, routes!(ids::find_ids))
            .guarded(Read, routes!(tasks::list_tasks))
            .guarded(Read, routes!(verdicts::list_verdicts))
            .guarded(Read, routes!(verdicts::get_verdict))
            .guarded(Read, routes!(events::follow_events))
            // An administrator's, even to look at.
            .guarded(Admin, routes!(invariants::check_invariants))
            .guarded(Admin, routes!(recovery::get_status))
            .guarded(Admin, routes!(sentinels::list_sentinels))
            .guarded(Admin, routes!(sentinels::list_heartbeats))
            .guarded(Admin, routes!(recovery::get_recovery_metrics))
            .guarded(Admin, routes!(recovery::list_failed))
            .guarded(Admin, routes!(sentinels::list_stale))
            .guarded(Admin, routes!(recovery::resume_jobs))
            .guarded(Admin, routes!(recovery::clean_jobs))
            .guarded(Admin, routes!(sentinels::get_health))
            .guarded(Admin, routes!(recovery::get_startup_log))
    }

    /// A route that answers everybody.
    fn open(self, routes: UtoipaMethodRouter<App>) -> Routes {
        self.add(Need::Nothing, routes)
    }

    /// A route that answers whoever has a token with this scope.
    fn guarded(self, scope: Scope, routes: UtoipaMethodRouter<App>) -> Routes {
        self.add(Need::Scope(scope), routes)
    }

    fn add(mut self, need: Need, routes: UtoipaMethodRouter<App>) -> Routes {
        for (path, item) in &routes.1.paths {
            let methods = methods_of(item).map(|method| (method, need));
            self.needs.0.entry(path.clone()).or_default().extend(methods);
        }
        self.router = self.router.routes(routes);
        self
    }

    pub(crate) fn into_parts(self) -> (Router<App>, OpenApi, Needs) {
        let (router, document) = self.router.split_for_parts();
        (router, document, self.needs)
    }
}

fn methods_of(item: &PathItem) -> impl Iterator<Item = Method> {
    let all = [
        (Method::GET, &item.get),
        (Method::PUT, &item.put),
        (Method::POST, &item.post),
        (Method::DELETE, &item.delete),
        (Method::OPTIONS, &item.options),
        (Method::HEAD, &item.head),
        (Method::PATCH, &item.patch),
        (Method::TRACE, &item.trace),
    ];
    all.into_iter().filter(|(_, operation)| operation.is_some()).map(|(method, _)| method)
}

/// What a request must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    Scope(Scope),
}

/// What each route needs: by its path as it is declared, and its method.
#[derive(Default)]
pub(crate) struct Needs(BTreeMap<String, Vec<(Method, Need)>>);

impl Needs {
    pub(crate) fn of(&self, request: &Request) -> Need {
        let (asked, path) = (request.method(), request.uri().path());
        let route = route_of(request);
        let declared = |asked: &Method| {
            let methods = self.0.get(route)?;
            methods.iter().find(|(method, _)| method == asked).map(|(_, need)| *need)
        };
        // Whoever answers GET answers HEAD.
        let as_get = || declared(&Method::GET).filter(|_| asked == Method::HEAD);
        match declared(asked).or_else(as_get) {
            Some(need) => need,
            None if self.is_open(path) => Need::Nothing,
            None => unrouted(asked, path),
        }
    }

    /// Whether that path answers everybody, whatever is asked of it.
    pub(crate) fn is_open(&self, path: &str) -> bool {
        self.0.get(path).is_some_and(|methods| methods.iter().all(|(_, need)| *need == Need::Nothing))
    }
}

/// Whether a request may bring a body of any content type: that of a ping is only kept to be read.
pub(crate) fn takes_any_body(request: &Request) -> bool {
    is_under(route_of(request), "/ping")
}

/// The path of the route that answers a request, as it is declared above, wherever this API is nested.
fn route_of(request: &Request) -> &str {
    let matched = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let outer = request.extensions().get::<NestedPath>().map_or("", |nested| nested.as_str().trim_end_matches('/'));
    matched.strip_prefix(outer).unwrap_or(matched)
}

/// What is needed to be told that there is no such path, or no such method: as much as for what could be there.
/// Whatever is not known to be less is an administrator's.
fn unrouted(method: &Method, path: &str) -> Need {
    Need::Scope(if path.starts_with("/api/admin") {
        Admin
    } else if looks_only(method) && path == "/metrics" {
        Metrics
    } else if path == "/dataflow/heartbeat" || is_under(path, "/ping") {
        Heartbeat
    } else if looks_only(method) {
        Read
    } else if path == "/api/v1/runs:batch" || SUBMITTED.iter().any(|root| is_under(path, root)) {
        Submit
    } else {
        Admin
    })
}

/// What may be made and acted on by whoever submits.
const SUBMITTED: [&str; 6] =
    ["/api/v1/runs", "/api/v1/jobs", "/api/v1/graphs", "/api/v1/executions", "/api/v1/schedules", "/api/v1/checks"];

fn is_under(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
