//! Ends commands, from outside: signals for everything that descends from one, when its time is up, when its client is
//! gone, and with the session.

use std::time::Instant;

use ringfence_guest::frame::{Channel, Kind, WINDOW};
use ringfence_guest::message::Input as GuestInput;

use super::super::info::End;
use super::super::protocol::{ExecutionEnd, Refusal, SupervisorReply};
use super::Supervisor;
use super::executions::{Due, Execution};
use super::streams::To;
use crate::supervise::Reason;

/// Why a command is not recorded, or not yet.
pub const LATE: &str = "it could not be written in time";

impl Supervisor {
    /// Tells whoever waits for a command that it runs, and what came of it meanwhile.
    pub(super) fn announce(&mut self, id: u64) {
        let Some(execution) = self.executions.all.get_mut(&id).filter(|e| e.begun && !e.announced) else { return };
        execution.announced = true;
        let (record, trouble) = (execution.record.clone(), execution.trouble.take());
        let begun = SupervisorReply::ExecutionStarted { execution: id, record, record_error: trouble };
        for place in execution.owner.iter().chain(&execution.attached) {
            self.clients.answer(*place, &begun);
        }
        let held = std::mem::take(&mut execution.held);
        for (owner, (channel, bytes)) in
            execution.owner.into_iter().flat_map(|owner| held.iter().map(move |h| (owner, h)))
        {
            self.clients.put(owner, Kind::Data(*channel), bytes);
        }
        self.feed_all(id);
        self.tell_end(id);
    }

    /// A command is not tried after all.
    pub(super) fn give_up(&mut self, id: u64, refusal: &Refusal) {
        let Some(mut gone) = self.executions.all.remove(&id) else { return };
        self.record_unstarted(&mut gone, &refusal.clone().into_error(&self.info.id).to_string());
        for place in gone.owner.into_iter().chain(gone.attached) {
            self.clients.answer_last(place, &SupervisorReply::Refused(refusal.clone()));
        }
    }

    /// To a command, or with `tree` to everything that descends from it: the guest continues what is stopped then.
    pub(super) fn signal(&mut self, id: u64, signal: i32, tree: bool) {
        if let Some(execution) = self.executions.all.get(&id).filter(|e| e.runs()) {
            // Two numbers.
            let _ = self.guest.wire.message(execution.stream, Kind::Input, &GuestInput::Signal { signal, tree });
        }
    }

    /// Begins to end a command, for this reason: TERM now, KILL when its clock has run out.
    pub(super) fn ask_to_end(&mut self, id: u64, reason: Reason) {
        let Some(execution) = self.executions.all.get_mut(&id) else { return };
        if execution.waits_for_record() {
            self.give_up(id, &Refusal::NotRecorded("it was ended before that".to_owned()));
        } else if execution.ask_to_end(reason, Instant::now()) {
            self.signal(id, libc::SIGTERM, true);
        }
    }

    /// Does what the clocks of commands ask for. One that outlives KILL is not the guest's to end any more.
    pub(super) fn end_overdue(&mut self, now: Instant) {
        if self.tree.frozen.is_some() {
            return;
        }
        let due = self.executions.all.values_mut().filter_map(|e| e.due(now).map(|what| (e.id, what)));
        for (id, what) in due.collect::<Vec<_>>() {
            match what {
                Due::Announce => self.record_is_late(id),
                Due::Refuse => self.give_up(id, &Refusal::NotRecorded(LATE.to_owned())),
                Due::Term => self.signal(id, libc::SIGTERM, true),
                Due::Kill => self.signal(id, libc::SIGKILL, true),
                Due::EndBox => {
                    self.end.get_or_insert(End::Unruly);
                }
            }
        }
    }

    /// Ends commands that used up their CPU time. What runs at the same time is counted together.
    pub(super) fn end_spent(&mut self, now: Instant) {
        let Some(limit) = self.plan.limits.cpu_time.filter(|_| self.executions.runs()) else { return };
        let Some((counted, used)) = self.tree.time_used() else { return };
        let mut ended = Vec::new();
        for e in self.executions.all.values_mut() {
            // Where it is not known from when one began, it is from the first count after that.
            if counted >= e.started {
                e.time_before.get_or_insert(used);
            }
            let spent = e.time_before.is_some_and(|before| used.saturating_sub(before) >= limit);
            ended.extend((spent && e.end_at_once(Reason::CpuTime, now)).then_some(e.id));
        }
        for id in ended {
            self.signal(id, libc::SIGKILL, true);
        }
    }

    /// The one who waited in the foreground is gone: the command is ended, and what it writes meanwhile is taken.
    pub(super) fn disown(&mut self, id: u64) {
        let Some(execution) = self.executions.all.get_mut(&id) else { return };
        execution.owner = None;
        if execution.finished.is_some() {
            // It had only to say what came of its pipes.
            self.feed_all(id);
            self.ended.push(id);
            return;
        }
        let (stream, asked) = (execution.stream, execution.runs());
        self.ask_to_end(id, Reason::Cancelled);
        if !asked {
            return;
        }
        for channel in [Channel::Out, Channel::Err] {
            let granted =
                self.guest.streams.get(&stream).map_or(WINDOW, |open| open.granted[Execution::log_of(channel)]);
            if granted < WINDOW {
                self.guest.grant(stream, channel, WINDOW - granted);
            }
        }
    }

    /// It has ended.
    pub(super) fn finished(&mut self, id: u64, mut finished: ExecutionEnd) {
        let Some(execution) = self.executions.all.get_mut(&id) else { return };
        finished.reason = execution.reason.or(finished.reason);
        execution.finished = Some(finished);
        // It may have left something.
        self.tree.may_be_inhabited();
        execution.input.queue.clear();
        self.guest.streams.remove(&execution.stream);
        self.life.used = Instant::now();
        self.tell_end(id);
    }

    /// Tells how it ended, when its clients know that it ran.
    fn tell_end(&mut self, id: u64) {
        let Some(execution) = self.executions.all.get_mut(&id).filter(|e| e.announced) else { return };
        let Some(finished) = execution.finished else { return };
        match execution.owner {
            // It tells what came of its pipes, and closes the stream then.
            Some(owner) if execution.told.is_some() => {
                return self.clients.answer(owner, &SupervisorReply::ExecutionEnded(finished));
            }
            Some(owner) => {
                execution.owner = None;
                self.clients.answer_last(owner, &SupervisorReply::ExecutionEnded(finished));
            }
            None => {}
        }
        self.feed_all(id);
        self.ended.push(id);
    }

    /// The session has ended: so has everything in it.
    pub(super) fn end_streams(&mut self, end: End) {
        for id in self.executions.all.keys().copied().collect::<Vec<_>>() {
            let Some(execution) = self.executions.all.get_mut(&id) else { continue };
            if execution.waits_for_record() {
                self.give_up(id, &Refusal::SessionEnded(end));
                continue;
            }
            let duration_us = execution.started.elapsed().as_micros() as u64;
            let finished = execution.finished.is_some();
            // It may have run; its guest cannot be asked any more.
            execution.begun = true;
            self.announce(id);
            if finished {
                continue;
            }
            self.executions.all.get_mut(&id).map(|execution| execution.reason.get_or_insert(Reason::Lost));
            self.finished(
                id,
                ExecutionEnd { status: libc::SIGKILL, reason: None, duration_us, cpu_us: 0, peak_memory: 0 },
            );
        }
        for stream in self.guest.streams.values() {
            let To::Client(place) = stream.to else { continue };
            self.clients.answer_last(place, &SupervisorReply::Refused(Refusal::SessionEnded(end)));
        }
        for place in self.tree.unanswered() {
            self.clients.answer_last(place, &SupervisorReply::Refused(Refusal::SessionEnded(end)));
        }
        for place in std::mem::take(&mut self.clients.stopping) {
            self.clients.answer_last(place, &SupervisorReply::Done { bytes: 0 });
        }
    }
}
