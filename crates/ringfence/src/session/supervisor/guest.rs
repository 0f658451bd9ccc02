//! The guest's side: every frame is hostile until it is checked.

use std::time::{Duration, Instant};

use ringfence_guest::frame::{self, Channel, Decoder, Frame, Kind};
use ringfence_guest::message::{Hello, Reply};
use rustix::event::epoll::EventFlags;

use super::super::info::End;
use super::super::protocol::{Answer, Finished};
use super::executions::Execution;
use super::relay::{To, add};
use super::wire::{Read, Wire};
use super::{SuperviseError, Supervisor};
use crate::supervise::Reason;

/// The guest broke the protocol.
struct Unruly;

/// The guest has spoken: whether that is a greeting in our version. Returns the buffer that it was read with.
pub fn hello(guest: &mut Wire) -> Result<Vec<u8>, SuperviseError> {
    let mut buffer = Vec::new();
    let spoken = guest.read(&mut buffer);
    match guest.decoder.next_frame() {
        Ok(Some(frame)) if (frame.stream, frame.kind) == (0, Kind::Reply) => match frame.message::<Hello>() {
            Ok(Hello { version: frame::VERSION }) => Ok(buffer),
            _ => Err(SuperviseError::Hello("it speaks another version")),
        },
        _ if spoken == Ok(Read::End) => Err(SuperviseError::Hello("it ended")),
        _ => Err(SuperviseError::Hello("it speaks something else")),
    }
}

impl Supervisor {
    pub(super) fn guest_ready(&mut self, flags: EventFlags) {
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return;
        }
        match self.guest.read(&mut self.buffer) {
            Ok(Read::Bytes(_)) => {
                self.heard = Instant::now();
                let mut decoder = std::mem::replace(&mut self.guest.decoder, Decoder::new(0));
                if self.guest_frames(&mut decoder).is_err() {
                    self.end.get_or_insert(End::Unruly);
                }
                self.guest.decoder = decoder;
            }
            Ok(Read::Nothing) => {}
            Ok(Read::End) | Err(_) => {
                self.end.get_or_insert(End::Died);
            }
        }
    }

    fn guest_frames(&mut self, decoder: &mut Decoder) -> Result<(), Unruly> {
        while let Some(frame) = decoder.next_frame().map_err(|_| Unruly)? {
            self.guest_frame(&frame)?;
        }
        Ok(())
    }

    fn guest_frame(&mut self, frame: &Frame<'_>) -> Result<(), Unruly> {
        let Some(stream) = self.streams.get_mut(&frame.stream) else {
            if self.ping.is_some_and(|(ping, _)| ping == frame.stream) {
                let answer = (frame.kind == Kind::Reply).then(|| frame.message::<Reply>().ok()).flatten();
                self.ping = None;
                return if matches!(answer, Some(Reply::Done { .. })) { Ok(()) } else { Err(Unruly) };
            }
            // On its way when the stream was closed; more than it was granted then it cannot be.
            let known = frame.stream != 0 && frame.stream < self.next_stream;
            let cost = (frame.payload.len() + frame::HEADER) as u64;
            self.stale = self.stale.checked_sub(cost).filter(|_| known).ok_or(Unruly)?;
            return Ok(());
        };
        let to = stream.to;
        match frame.kind {
            Kind::Data(channel @ (Channel::Out | Channel::Err)) => {
                let granted = &mut stream.granted[Execution::log_of(channel)];
                *granted = granted.checked_sub(frame.payload.len() as u32).ok_or(Unruly)?;
                match to {
                    To::Execution(id) => self.output(id, channel, frame.payload),
                    To::Client(place) => self.pass_on(place, frame.kind, frame.payload),
                }
            }
            Kind::Eof(Channel::Out | Channel::Err) => {
                if let To::Client(place) = to {
                    self.pass_on(place, frame.kind, &[]);
                }
            }
            Kind::Credit(Channel::In) => {
                let more = frame.credit().map_err(|_| Unruly)?;
                match to {
                    To::Execution(id) => {
                        let execution = self.executions.all.get_mut(&id).ok_or(Unruly)?;
                        execution.input.credit = add(execution.input.credit, more).ok_or(Unruly)?;
                        self.pump_input(id);
                    }
                    To::Client(place) => {
                        if let Some(takes) = &mut stream.takes {
                            *takes = add(*takes, more).ok_or(Unruly)?;
                        }
                        self.pass_on(place, frame.kind, frame.payload);
                    }
                }
            }
            Kind::Reply => {
                let reply = frame.message::<Reply>().map_err(|_| Unruly)?;
                match to {
                    To::Execution(id) => self.execution_reply(id, reply)?,
                    To::Client(place) => {
                        if matches!(reply, Reply::Started { .. }) {
                            stream.takes = stream.takes_started.take().or(stream.takes);
                        }
                        self.reply(frame.stream, place, reply);
                    }
                }
            }
            _ => return Err(Unruly),
        }
        Ok(())
    }

    fn pass_on(&mut self, (client, stream): (u64, u32), kind: Kind, payload: &[u8]) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.wire.put(stream, kind, payload);
        }
        self.dirty.push(client);
    }

    fn reply(&mut self, stream: u32, place: (u64, u32), reply: Reply) {
        let client = self.clients.get_mut(&place.0);
        if let (Reply::Changed(_), Some(client)) = (&reply, client.filter(|client| client.lags())) {
            client.missed.insert(place.1);
            return;
        }
        let last = reply.is_last();
        let answer = Answer::Guest(reply);
        if last {
            self.streams.remove(&stream);
            self.answer_last(place, &answer);
            self.used = Instant::now();
        } else {
            self.answer(place, &answer);
        }
    }

    fn execution_reply(&mut self, id: u64, reply: Reply) -> Result<(), Unruly> {
        let execution = self.executions.all.get_mut(&id).ok_or(Unruly)?;
        match reply {
            Reply::Started { .. } if !execution.begun => {
                execution.begun = true;
                let (record, trouble) = (execution.record.clone(), execution.trouble.take());
                let listening = execution.owner.into_iter().chain(execution.attached.clone());
                for place in listening.collect::<Vec<_>>() {
                    let (record, trouble) = (record.clone(), trouble.clone());
                    self.answer(place, &Answer::Begun { id, record, trouble });
                }
            }
            Reply::Exited(exited) if execution.begun => {
                let duration = execution.started.elapsed();
                // The kernel's count, off the way of a command that did well.
                let (kills_before, refused_before) = (execution.kills_before, execution.refused_before);
                let alone = execution.alone;
                let reason = may_be_killed(exited.status, alone).then(|| self.counts_now()).and_then(|counts| {
                    let (kills, refused) = counts;
                    let too_many = (refused > refused_before && alone).then_some(Reason::Processes);
                    if kills > kills_before { Some(Reason::Memory) } else { too_many }
                });
                self.look_at_counts = true;
                let cpu_us = exited.user_micros.saturating_add(exited.system_micros);
                self.finished(
                    id,
                    Finished {
                        status: exited.status,
                        reason,
                        duration_us: micros(duration),
                        cpu_us,
                        peak_memory: exited.peak_memory,
                    },
                );
            }
            Reply::Failed { step, errno } if !execution.begun => {
                let listening = execution.owner.into_iter().chain(execution.attached.clone());
                let listening: Vec<_> = listening.collect();
                let mut record = None;
                if let Some(gone) = self.executions.all.remove(&id) {
                    self.streams.remove(&gone.stream);
                    record = gone.record;
                    self.unstarted.extend(gone.ticket.map(|ticket| (ticket, step, errno)));
                }
                for place in listening {
                    self.answer_last(place, &Answer::NotBegun { id, record: record.clone(), step, errno });
                }
            }
            _ => return Err(Unruly),
        }
        Ok(())
    }
}

/// Whether a kill in the box since a command began can be why it ended like this. Others that ran meanwhile may have been
/// meant, unless its own end says that it was one (137: a shell's child was).
fn may_be_killed(status: i32, alone: bool) -> bool {
    let killed = if libc::WIFSIGNALED(status) {
        libc::WTERMSIG(status) == libc::SIGKILL
    } else {
        libc::WEXITSTATUS(status) == 128 + libc::SIGKILL
    };
    killed || (alone && status != 0)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::may_be_killed;

    #[test]
    fn a_kill_is_not_anybodys() {
        let exited = |code: i32| code << 8;
        for (status, alone, expected) in [
            (0, true, false),
            (0, false, false),
            (exited(1), true, true),
            (exited(1), false, false),
            (exited(137), false, true),
            (libc::SIGKILL, false, true),
            (libc::SIGTERM, false, false),
            (libc::SIGTERM, true, true),
        ] {
            assert_eq!(may_be_killed(status, alone), expected, "{status:#x} {alone}");
        }
    }
}
