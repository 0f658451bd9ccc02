//! From the list to a program for the kernel's classic BPF machine: pure, for either architecture.
//!
//! The program is a search tree over the call number, whose leaves are shared answers or conditions on arguments. It uses
//! only what the kernel can follow without running it, so that it remembers plainly allowed calls and lets them pass at
//! the cost of a bit test. An x32 call is a number above every known one, which the tree answers like any unknown number.
//!
//! Code is emitted back to front, so that the target of every jump, which can only go forward, is already there.
//!
//! The build script shares this file.

use super::list::{Answer, Case, Check, GROUPS, OPENS, REFUSABLE, Refused, Rule, Word};

/// One instruction of classic BPF, laid out as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SockFilter {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// Load, compare, mask, jump and return: all that a program is made of.
pub mod op {
    /// Load the 32-bit word at offset `k` of the call's description.
    pub const LOAD: u16 = 0x20;
    pub const AND: u16 = 0x54;
    pub const JUMP: u16 = 0x05;
    pub const IF_EQUAL: u16 = 0x15;
    pub const IF_AT_LEAST: u16 = 0x35;
    pub const RETURN: u16 = 0x06;
}

/// Offsets in the call's description: number, architecture, then (after the instruction pointer) six 64-bit arguments.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

const ENOSYS: Answer = Answer::Errno(38);
const EPERM: Answer = Answer::Errno(1);

/// A machine whose numbers the list has. Both are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    /// The kernel's name for it, `AUDIT_ARCH_…`.
    pub const fn audit(self) -> u32 {
        match self {
            Self::X86_64 => 0xc000_003e,
            Self::Aarch64 => 0xc000_00b7,
        }
    }
}

/// What a program may do with sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sockets {
    /// Unix, TCP, UDP and ping, and the netlink that lists interfaces: for a box with a network of its own, or an open one.
    #[default]
    All,
    /// Unix and that netlink: for a box without a network namespace whose network is off.
    UnixOnly,
    /// Connected Unix pairs, which runtimes talk to their children with, and nothing that can be aimed elsewhere.
    PairsOnly,
    /// All, for a program that is handed a socket of another network: what any socket tells of its network is refused.
    Handed,
}

/// How a program differs from the default one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Let sandboxes be made inside: namespaces and the mount interface.
    pub nesting: bool,
    pub sockets: Sockets,
    /// Calls let through whatever the list says of them, their arguments included.
    pub allow: &'a [&'a str],
    /// Calls refused that are not in `allow`.
    pub refuse: Refused,
    pub notify: Notify,
}

/// Calls that would be let through and that a listener is asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notify {
    #[default]
    Nothing,
    /// Those that look a path up or connect. For diagnosis: what the listener reads belongs to the program it watches.
    Opens,
}

/// `name` is no system call that the list knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCall {
    pub name: String,
    pub nearest: &'static str,
}

/// The program for `arch`.
pub fn compile(arch: Arch, options: &Options) -> Result<Vec<SockFilter>, UnknownCall> {
    if let Some(name) = options.allow.iter().find(|name| !calls(arch).any(|call| call.name == **name)) {
        return Err(UnknownCall { name: (*name).to_owned(), nearest: nearest(name) });
    }
    let mut known: Vec<_> = calls(arch).filter_map(|call| Some((call.number?, decision(&call, options)))).collect();
    known.sort_by_key(|(number, _)| *number);
    Ok(compile_numbers(arch, known))
}

/// The program for calls in the order of their numbers; all others do not exist.
pub fn compile_numbers(arch: Arch, known: impl IntoIterator<Item = (u32, Decision)>) -> Vec<SockFilter> {
    let mut code = Code::default();
    let mut ranges = Vec::new();
    let mut next = 0;
    for (number, decision) in known {
        if number > next {
            ranges.push((next, Target::Answer(ENOSYS)));
        }
        ranges.push((number, code.decision(decision)));
        next = number + 1;
    }
    ranges.push((next, Target::Answer(ENOSYS)));

    let by_number = code.switch(NUMBER, u32::MAX, ranges);
    code.branch(op::IF_EQUAL, arch.audit(), by_number, Target::Answer(ENOSYS));
    code.push(op::LOAD, ARCH);
    code.reversed.reverse();
    code.reversed
}

/// One call of the list on one architecture.
#[derive(Debug)]
pub struct Call {
    pub name: &'static str,
    /// None where this architecture never had it.
    pub number: Option<u32>,
    pub rule: Rule,
}

/// Every call of the list.
pub fn calls(arch: Arch) -> impl Iterator<Item = Call> {
    GROUPS.iter().flat_map(move |group| {
        group.calls.iter().map(move |&(name, x86_64, aarch64)| {
            let number = match arch {
                Arch::X86_64 => x86_64,
                Arch::Aarch64 => aarch64,
            };
            Call { name, number: u32::try_from(number).ok(), rule: group.rule }
        })
    })
}

/// What is to be done about a call once the options are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Answer(Answer),
    /// What is let through is answered like this.
    Check(&'static Check, Answer),
}

/// The rule of a call under these options.
pub fn decision(call: &Call, options: &Options) -> Decision {
    if options.allow.contains(&call.name) {
        return Decision::Answer(Answer::Allow);
    }
    let told = match options.notify {
        Notify::Nothing => false,
        Notify::Opens => OPENS.contains(&call.name),
    };
    let allow = if told { Answer::Notify } else { Answer::Allow };
    let refused = REFUSABLE.iter().filter(|refusable| options.refuse.has(refusable.group));
    let instead = refused.flat_map(|refusable| refusable.calls).find(|(name, _)| *name == call.name);
    match instead.map_or(call.rule, |(_, rule)| *rule) {
        Rule::Allow => Decision::Answer(allow),
        Rule::Deny => Decision::Answer(EPERM),
        Rule::Absent => Decision::Answer(ENOSYS),
        Rule::Nesting(_) if options.nesting => Decision::Answer(Answer::Allow),
        Rule::When(check) | Rule::Nesting(check) => Decision::Check(check, allow),
        Rule::Sockets(by_reach) => Decision::Check(by_reach[options.sockets as usize], allow),
    }
}

/// Where a jump goes: an answer, which can stand anywhere, or an instruction, counted from the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Answer(Answer),
    Instruction(usize),
}

/// A stretch of values with one target, but for a few single ones.
#[derive(Debug)]
struct Segment {
    start: u32,
    rest: Target,
    single: Vec<(u32, Target)>,
}

/// Single values that one segment may hold. Each costs one comparison, where a range of its own would cost two; more of
/// them make the way through the tree longer.
const SINGLES: usize = 3;

/// Conditional jumps reach 255 instructions on; up to two are put in between before the jump itself is.
const REACH: usize = 253;

/// The program so far, last instruction first.
#[derive(Debug, Default)]
struct Code {
    reversed: Vec<SockFilter>,
    answers: Vec<(Answer, usize)>,
}

impl Code {
    fn push(&mut self, code: u16, k: u32) -> usize {
        self.reversed.push(SockFilter { code, jt: 0, jf: 0, k });
        self.reversed.len() - 1
    }

    fn decision(&mut self, decision: Decision) -> Target {
        match decision {
            Decision::Answer(answer) => Target::Answer(answer),
            Decision::Check(check, allow) => self.check(check, allow),
        }
    }

    fn check(&mut self, check: &'static Check, allow: Answer) -> Target {
        match check {
            Check::Then(Answer::Allow) => Target::Answer(allow),
            Check::Then(answer) => Target::Answer(*answer),
            Check::Match { word, mask, cases, otherwise } => {
                let otherwise = self.check(otherwise, allow);
                let cases: Vec<_> = cases
                    .iter()
                    .map(|case| match case {
                        Case::Is(values, check) => (Case::Is(values, check), self.check(check, allow)),
                        Case::UpTo(last, check) => (Case::UpTo(*last, check), self.check(check, allow)),
                    })
                    .collect();
                let ranges = starts(cases.iter().map(|(case, _)| case))
                    .into_iter()
                    .map(|start| {
                        let case = cases.iter().find(|(case, _)| fits(case, start));
                        (start, case.map_or(otherwise, |(_, target)| *target))
                    })
                    .collect();
                self.switch(offset(*word), *mask, ranges)
            }
        }
    }

    /// Loads a word and goes where `ranges`, in order and beginning with 0, send it.
    fn switch(&mut self, offset: u32, mask: u32, ranges: Vec<(u32, Target)>) -> Target {
        let tree = self.tree(&segments(ranges));
        // What is loaded falls through to the tree, so its first instruction has to come next.
        let first = match tree {
            Target::Instruction(at) if at + 1 == self.reversed.len() => at,
            Target::Instruction(at) => self.jump(at),
            Target::Answer(_) => return tree,
        };
        let masked = if mask == u32::MAX { first } else { self.push(op::AND, mask) };
        debug_assert_eq!(masked + 1, self.reversed.len());
        Target::Instruction(self.push(op::LOAD, offset))
    }

    fn tree(&mut self, segments: &[Segment]) -> Target {
        if let [segment] = segments {
            return segment
                .single
                .iter()
                .rev()
                .fold(segment.rest, |rest, (value, target)| self.branch(op::IF_EQUAL, *value, *target, rest));
        }
        let (below, above) = segments.split_at(segments.len() / 2);
        let start = above[0].start;
        let above = self.tree(above);
        let below = self.tree(below);
        self.branch(op::IF_AT_LEAST, start, above, below)
    }

    fn branch(&mut self, code: u16, k: u32, then: Target, otherwise: Target) -> Target {
        let then = self.near(then);
        let otherwise = self.near(otherwise);
        let at = self.reversed.len();
        let distance = |to: usize| u8::try_from(at - to - 1).expect("a target that was brought near");
        self.reversed.push(SockFilter { code, jt: distance(then), jf: distance(otherwise), k });
        Target::Instruction(at)
    }

    /// An instruction within reach of a conditional jump that does what `target` does.
    fn near(&mut self, target: Target) -> usize {
        let now = self.reversed.len();
        match target {
            Target::Instruction(at) if now - at <= REACH => at,
            Target::Instruction(at) => self.jump(at),
            Target::Answer(answer) => {
                if let Some(&(_, at)) = self.answers.iter().rfind(|(known, _)| *known == answer)
                    && now - at <= REACH
                {
                    return at;
                }
                let at = self.push(op::RETURN, return_value(answer));
                self.answers.push((answer, at));
                at
            }
        }
    }

    fn jump(&mut self, to: usize) -> usize {
        let distance = self.reversed.len() - to - 1;
        self.push(op::JUMP, u32::try_from(distance).expect("a program of few instructions"))
    }
}

/// `SECCOMP_RET_…`.
pub fn return_value(answer: Answer) -> u32 {
    match answer {
        Answer::Allow => 0x7fff_0000,
        Answer::Notify => 0x7fc0_0000,
        Answer::Errno(number) => 0x0005_0000 | u32::from(number),
    }
}

fn offset(word: Word) -> u32 {
    match word {
        Word::Low(argument) => ARGUMENTS + 8 * u32::from(argument),
        Word::High(argument) => ARGUMENTS + 8 * u32::from(argument) + 4,
    }
}

/// Whether a case speaks for a value.
pub fn fits(case: &Case, value: u32) -> bool {
    match case {
        Case::Is(values, _) => values.contains(&value),
        Case::UpTo(last, _) => value <= *last,
    }
}

/// The values at which the case that fits can change.
pub fn starts<'a>(cases: impl Iterator<Item = &'a Case>) -> Vec<u32> {
    let mut starts = vec![0];
    for case in cases {
        match case {
            Case::Is(values, _) => starts.extend(values.iter().flat_map(|v| [Some(*v), v.checked_add(1)]).flatten()),
            Case::UpTo(last, _) => starts.extend(last.checked_add(1)),
        }
    }
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// Joins neighbours with the same target, and takes up single values between two ranges that have the same one.
fn segments(mut ranges: Vec<(u32, Target)>) -> Vec<Segment> {
    ranges.dedup_by_key(|(_, target)| *target);
    let is_single = |at: usize| ranges.get(at + 1).is_some_and(|(next, _)| *next == ranges[at].0 + 1);
    let mut segments = Vec::new();
    let mut at = 0;
    while at < ranges.len() {
        let (start, rest) = ranges[at];
        let mut segment = Segment { start, rest, single: Vec::new() };
        loop {
            let first = at + 1;
            let mut end = first;
            while is_single(end) && ranges[end].1 != rest {
                end += 1;
            }
            let returns = ranges.get(end).is_some_and(|(_, target)| *target == rest);
            if !returns || segment.single.len() + (end - first) > SINGLES {
                break;
            }
            segment.single.extend_from_slice(&ranges[first..end]);
            at = end;
        }
        segments.push(segment);
        at += 1;
    }
    segments
}

/// The name of the list that `name` is the fewest edits away from.
fn nearest(name: &str) -> &'static str {
    let names = GROUPS.iter().flat_map(|group| group.calls).map(|call| call.0);
    names.min_by_key(|known| edits(name, known)).unwrap_or_default()
}

/// Insertions, deletions and replacements between two names.
fn edits(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}
