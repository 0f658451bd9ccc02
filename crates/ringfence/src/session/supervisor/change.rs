//! What a client changes on a live sandbox from outside: its limits, and whether it stands still.

use std::sync::Arc;
use std::time::Instant;

use ringfence_policy::Guarantee;
use ringfence_policy::limits::{Limits, format_duration, format_size};

use super::super::info::{LimitChange, State};
use super::super::protocol::{ClientRequest, Refusal, SupervisorReply};
use super::Supervisor;
use super::changer::{Change, Made, What};
use super::client::ClientStream;
use super::executions::Place;
use crate::engines::Control;

impl Supervisor {
    pub(super) fn change(&mut self, place: Place, request: &ClientRequest) -> Result<(), Refusal> {
        let change = match request {
            ClientRequest::Freeze => Change::Freeze,
            ClientRequest::Thaw => Change::Thaw,
            ClientRequest::ChangeLimits(change) => {
                self.check(*change)?;
                // Time limits are kept here, and hold at once.
                if *change == (LimitChange { timeout: change.timeout, ..LimitChange::default() }) {
                    self.changed(What::Limited(*change), true);
                    self.worker.keep(self.kept());
                    self.clients.answer_last(place, &SupervisorReply::Done { bytes: 0 });
                    return Ok(());
                }
                let none = Limits { memory: None, cpus: None, pids: None, ..self.plan.limits.clone() };
                Change::Limits { change: *change, others: Box::new(none), room: self.tree.room() }
            }
            _ => return Err(Refusal::BadRequest),
        };
        let can = |control: &Arc<dyn Control>| match change {
            Change::Freeze | Change::Thaw => self.can.freeze && control.can_freeze(),
            Change::Limits { .. } => control.can_limit(),
        };
        let control = self.tree.control.clone().filter(can).ok_or(Refusal::Unsupported)?;
        // What is frozen can always be thawed.
        if self.changer.is_full() && !matches!(change, Change::Thaw) {
            return Err(Refusal::TooMany);
        }
        self.changer.give(place, control, change).map_err(|error| Refusal::NotChanged(error.to_string()))?;
        self.remember(place, ClientStream::Waiting);
        Ok(())
    }

    /// None may be higher than the one that the session was made with. Changes may be under way: what is not given stays as
    /// they leave it.
    fn check(&self, change: LimitChange) -> Result<(), Refusal> {
        let LimitChange { memory, cpus, processes, timeout } = change;
        let usable = memory.is_none_or(|n| n > 0)
            && processes.is_none_or(|n| n > 0)
            && timeout.is_none_or(|time| !time.is_zero())
            && cpus.is_none_or(|n| n.is_finite() && n > 0.0);
        if !usable {
            return Err(Refusal::BadRequest);
        }
        let above = |asked: Option<u64>, made: Option<u64>| asked.zip(made).is_some_and(|(asked, made)| asked > made);
        let made = &self.ceiling;
        let too_many_cpus = cpus.zip(made.cpus).is_some_and(|(asked, made)| asked > made);
        let too_long = timeout.zip(made.timeout_ceiling).is_some_and(|(asked, made)| asked > made);
        if above(memory, made.memory) || above(processes, made.pids) || too_many_cpus || too_long {
            return Err(Refusal::AboveLimit);
        }
        Ok(())
    }

    /// Changes were made, or could not be.
    pub(super) fn changes_made(&mut self) {
        for Made { place, what, result } in self.changer.take() {
            let done = result.is_ok();
            let trouble = result.err().map(|error| match &what {
                What::Limited(held) => not_all(&error.to_string(), *held),
                What::Frozen | What::Thawed => error.to_string(),
            });
            self.changed(what, done);
            if self.info.state == State::Live {
                self.worker.keep(self.kept());
            }
            let answer = match trouble {
                None => SupervisorReply::Done { bytes: 0 },
                Some(trouble) => SupervisorReply::Refused(Refusal::NotChanged(trouble)),
            };
            self.clients.answer_last(place, &answer);
        }
    }

    fn changed(&mut self, what: What, done: bool) {
        let now = Instant::now();
        match what {
            What::Frozen if done => {
                self.tree.frozen.get_or_insert(now);
            }
            What::Thawed if done => {
                if let Some(since) = self.tree.frozen.take() {
                    self.executions.shift_clocks(since, now);
                    self.guest.woke(now);
                    self.clients.all.values_mut().for_each(|client| client.held = 0);
                }
            }
            What::Frozen | What::Thawed => {}
            What::Limited(LimitChange { memory, cpus, processes, timeout: longest }) => {
                let limits = self.plan.limits.clone();
                let (memory, cpus, pids) = (memory.or(limits.memory), cpus.or(limits.cpus), processes.or(limits.pids));
                // A command that asks for no time has what the session was made with, as far as that is allowed.
                let timeout =
                    longest.map_or(limits.timeout, |most| Some(self.ceiling.timeout.unwrap_or(most).min(most)));
                let timeout_ceiling = longest.or(limits.timeout_ceiling);
                self.set_limits(Limits { memory, cpus, pids, timeout, timeout_ceiling, ..limits });
                // It may have been made by the old ones meanwhile.
                self.tree.forget_room();
            }
        }
        self.info.frozen = self.tree.frozen.is_some();
    }

    /// They hold now: says so.
    fn set_limits(&mut self, limits: Limits) {
        let now = |old: Option<String>, new: Option<String>| (old != new).then_some(new).flatten();
        let size = |n: &Limits| n.memory.map(format_size);
        let number = |n: Option<u64>| n.map(|n| n.to_string());
        let time = |n: &Limits| n.timeout_ceiling.map(format_duration);
        let before = &self.plan.limits;
        let changed = [
            (Guarantee::LimitMemory, now(size(before), size(&limits))),
            (Guarantee::LimitCpu, now(before.cpus.map(|n| n.to_string()), limits.cpus.map(|n| n.to_string()))),
            (Guarantee::LimitProcesses, now(number(before.pids), number(limits.pids))),
            (Guarantee::LimitTime, now(time(before), time(&limits))),
        ];
        for (id, value) in changed {
            let answer = self.report.guarantees.iter_mut().find(|answer| answer.id == id);
            if let (Some(answer), Some(value)) = (answer, value) {
                let by = answer.by.split(CHANGED).next().unwrap_or_default();
                answer.by = format!("{by}{CHANGED}{value}");
            }
        }
        (self.info.memory, self.info.cpus, self.info.processes) = (limits.memory, limits.cpus, limits.pids);
        (self.info.timeout, self.info.timeout_ceiling) = (limits.timeout, limits.timeout_ceiling);
        self.plan.limits = limits;
    }
}

/// What stands in the report before a limit that was changed.
const CHANGED: &str = ", changed to ";

/// Why limits were not all set, and which of them hold all the same.
fn not_all(trouble: &str, held: LimitChange) -> String {
    let all = [
        held.processes.map(|n| format!("processes {n}")),
        held.memory.map(|n| format!("memory {}", format_size(n))),
        held.cpus.map(|n| format!("cpus {n}")),
        held.timeout.map(|time| format!("timeout {}", format_duration(time))),
    ];
    match all.into_iter().flatten().collect::<Vec<_>>() {
        held if held.is_empty() => trouble.to_owned(),
        held => format!("{trouble}; changed before that: {}", held.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_change_is_told() {
        assert_eq!(not_all("busy", LimitChange::default()), "busy");
        let held = LimitChange { processes: Some(7), ..LimitChange::default() };
        assert_eq!(not_all("busy", held), "busy; changed before that: processes 7");
    }
}
