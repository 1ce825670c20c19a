//! One node of a ring, as its user sees it: lines about what happens, and how it ends.

#![allow(clippy::disallowed_methods, reason = "rates are measured by the clock")]

use crate::interrupt;
use crate::output;
use crate::ring::intro::{Host, RunIntro};
use anyhow::bail;
use crossbeam_channel::RecvTimeoutError;
use planaria_actors::protocol::Identity;
use planaria_actors::protocol::decision::Decision;
use planaria_actors::protocol::effect::{Line, Stop};
use planaria_actors::protocol::message::Request;
use planaria_actors::ring::net::{Ear, life};
use planaria_actors::ring::node::RunEvent;
use planaria_actors::ring::run::Run;
use planaria_base::{Digest, Incarnation, NodeId, Step};
use planaria_models::kernels::Isa;
use planaria_models::partials::loss_from_grid;
use planaria_transport::key::RingKey;
use planaria_transport::{BulkChoice, Limits, Setup, Transport};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After the last step, the checkpoint must be there within this.
const DURABLE_WITHIN: Duration = Duration::from_secs(120);
/// A finished node stays this long for those that have not heard.
const LINGER: Duration = Duration::from_millis(500);

/// A fresh node's transport and ear.
///
/// # Errors
/// If the port is taken.
pub(crate) fn transport(
    key: RingKey,
    node: NodeId,
    listen: SocketAddr,
) -> anyhow::Result<(Transport, Ear)> {
    let ear = Ear::default();
    let setup = Setup {
        key,
        node,
        incarnation: Incarnation(1),
        host: host(),
        listen,
        bulk: BulkChoice::Auto,
        limits: Limits::default(),
    };
    let transport = Transport::start(setup, Arc::new(ear.clone()))?;
    Ok((transport, ear))
}

/// This machine's name as a number: nodes of one machine are told from nodes of several.
fn host() -> u64 {
    let id = std::fs::read("/etc/machine-id").unwrap_or_default();
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    let digest = Digest::of(&[id, name].concat());
    u64::from_le_bytes(digest.0[..8].try_into().unwrap_or_default())
}

/// A node's name: a fresh one each time it is started.
///
/// # Errors
/// If the system has no randomness.
pub(crate) fn fresh_name() -> anyhow::Result<NodeId> {
    let random = RingKey::generate()?.text();
    Ok(NodeId(u64::from_str_radix(&random[..16], 16)?))
}

/// Who a node is.
pub(crate) fn identity(at: Option<SocketAddr>, node: NodeId) -> Identity {
    Identity { node, incarnation: Incarnation(1), host: host(), at, capacity: 1 }
}

/// How a node's part ended.
pub(crate) struct Ended {
    /// The last decision.
    pub(crate) last: Option<Decision>,
    /// The latest state that this node published, and its hash.
    pub(crate) hash: Option<(Step, Digest)>,
    /// Validation losses, latest last.
    pub(crate) validation: Option<f64>,
    /// Seconds of each step.
    pub(crate) seconds: Vec<f64>,
    /// It was asked to stop before the end.
    pub(crate) interrupted: bool,
}

/// A node under way.
pub(crate) struct RingSession {
    run: Run,
    quiet: bool,
    every: u64,
    tokens_per_step: u64,
    finished: Option<Instant>,
    durable: Step,
    publishes: bool,
    stopping: bool,
    on_interrupt: Request,
    since: Instant,
    ended: Ended,
}

impl RingSession {
    /// Opens the node to others and watches it.
    pub(crate) fn new(run: Run, ear: &Ear, intro: &RunIntro, quiet: bool) -> RingSession {
        let host = Host { intro: intro.clone(), isa: Isa::detect() };
        ear.open(run.node().clone(), run.arbiter(), Arc::new(host));
        let spec = &intro.spec;
        RingSession {
            run,
            quiet,
            every: (intro.ring.last_step / 20).clamp(1, 10),
            tokens_per_step: u64::from(spec.leaves) * (spec.sequences * spec.length) as u64,
            finished: None,
            durable: Step(0),
            publishes: false,
            stopping: false,
            on_interrupt: Request::Stop,
            since: Instant::now(),
            ended: Ended {
                last: None,
                hash: None,
                validation: None,
                seconds: Vec::new(),
                interrupted: false,
            },
        }
    }

    /// Ctrl-C makes this node leave, not the run stop.
    pub(crate) fn leaving(mut self, node: NodeId) -> RingSession {
        self.on_interrupt = Request::Leave(node);
        self
    }

    fn say(&self, line: &str) {
        if !self.quiet {
            output::note(line);
        }
    }

    /// Follows the run to its end.
    ///
    /// # Errors
    /// If the run stopped before its end, or its last state is not durable.
    pub(crate) fn follow(mut self) -> anyhow::Result<Ended> {
        loop {
            if interrupt::requested() && !std::mem::replace(&mut self.stopping, true) {
                self.say("stopping: a second Ctrl-C ends the process at once");
                self.ended.interrupted = true;
                self.run.ask(self.on_interrupt.clone());
            }
            match self.run.events().recv_timeout(Duration::from_millis(100)) {
                Ok(event) => {
                    if self.on_event(event)? {
                        break;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the node has ended"),
            }
            if self.is_over()? {
                break;
            }
        }
        std::thread::sleep(LINGER);
        Ok(self.ended)
    }

    /// The run is over here once its last state is durable.
    fn is_over(&self) -> anyhow::Result<bool> {
        let Some(finished) = self.finished else { return Ok(false) };
        let last = self.ended.last.as_ref().map_or(Step(0), |d| d.step);
        if self.durable >= last && (!self.publishes || self.ended.hash.is_some_and(|h| h.0 == last))
        {
            return Ok(true);
        }
        if finished.elapsed() > DURABLE_WITHIN {
            bail!(
                "the run is done, but its last state did not become durable; see the lines above"
            );
        }
        Ok(false)
    }

    fn on_event(&mut self, event: RunEvent) -> anyhow::Result<bool> {
        match event {
            RunEvent::Decided(decision, members) => self.on_decided(*decision, members),
            RunEvent::Evaluated(step, stats) if stats.labels > 0 => {
                let loss = stats.loss_sum / stats.labels as f64;
                self.ended.validation = Some(loss);
                self.say(&format!("step {step}: validation loss {loss:.4}"));
            }
            RunEvent::Durable(step) => self.durable = step,
            RunEvent::NotStored(step, reason) => {
                self.say(&format!("warning: no checkpoint of step {step}: {reason}"));
            }
            RunEvent::Published(step, hash, Ok(())) => {
                self.say(&format!("step {step}: checkpoint saved, state {}", hash.short()));
                self.ended.hash = Some((step, hash));
            }
            RunEvent::Published(step, _, Err(reason)) => {
                self.say(&format!("warning: no checkpoint of step {step}: {reason}"));
            }
            RunEvent::Line(line) => self.say(&text(&line)),
            RunEvent::Restarted(what) => self.say(&format!("restarted: {what}")),
            RunEvent::Stopped(Stop::Finished) => {
                self.finished = Some(Instant::now());
                let status = self.run.status()?;
                self.durable = self.durable.max(status.durable);
                let conductor = status.view.as_ref().map(|v| v.view.conductor());
                self.publishes = conductor == Some(self.run.me());
            }
            RunEvent::Stopped(Stop::Left) => {
                self.say("left the ring; its chunks are with the others");
                return Ok(true);
            }
            RunEvent::Stopped(Stop::Halted(reason)) => bail!("{reason}"),
            RunEvent::Evaluated(..) => {}
        }
        Ok(false)
    }

    fn on_decided(&mut self, decision: Decision, members: usize) {
        let seconds = self.since.elapsed().as_secs_f64();
        self.since = Instant::now();
        if self.ended.last.is_some() {
            self.ended.seconds.push(seconds);
        }
        let step = decision.step.0;
        if step.is_multiple_of(self.every) || step == 1 {
            let loss = loss_from_grid(decision.loss) / decision.labels.max(1) as f64;
            let rate = self.tokens_per_step as f64 / seconds.max(1e-9);
            self.say(&format!("step {step}: loss {loss:.4}, {rate:.0} tokens/s, {members} nodes"));
        }
        self.ended.last = Some(decision);
    }
}

/// One line about what happened and what it cost.
fn text(line: &Line) -> String {
    match line {
        Line::View { view, members, detected_ms, settled_ms, recomputed_leaves, evicted } => {
            let gone: Vec<String> = evicted
                .iter()
                .map(|(n, why)| format!("{} ({why:?})", life(*n, Incarnation(1))))
                .collect();
            let gone = if gone.is_empty() {
                String::new()
            } else {
                format!(", without {}", gone.join(", "))
            };
            format!(
                "view {}: {members} nodes{gone}; detected in {detected_ms} ms, settled in {settled_ms} ms, {recomputed_leaves} leaves computed again",
                view.number
            )
        }
        Line::Waiting(chunk) => {
            format!("every copy of chunk {chunk} is out of reach: waiting for its nodes")
        }
        Line::FellBack { chunk, to, lost } => format!(
            "every copy of chunk {chunk} is lost: back to the checkpoint of step {to}, {lost} steps are done again"
        ),
        Line::Corrupt(node, chunk) => format!(
            "node {}: its copy of chunk {chunk} is not what was agreed; it is replaced",
            life(*node, Incarnation(1))
        ),
        Line::Fenced => "the ring went on without this node: coming back".to_owned(),
        Line::Skipped(step, chunks) => {
            let names: Vec<String> = chunks.iter().map(ToString::to_string).collect();
            format!("step {step}: skipped, gradients of chunks {} overflowed", names.join(", "))
        }
        Line::RequestRefused(why) => format!("refused: {why}"),
    }
}
