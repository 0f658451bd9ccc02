//! The list as rules for a container engine, which compiles a filter of its own from them.
//!
//! Such rules know no "otherwise" and compare each argument once, by `argument & mask == value`. So every decision is taken
//! apart into cases that exclude each other, and a range into the blocks that a mask can name.

use super::compile::{Arch, Decision, Options, calls, decision, fits, starts};
use super::list::{Answer, Check, Word};

/// One answer, for calls and arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileRule {
    pub names: Vec<&'static str>,
    pub answer: Answer,
    /// All must hold.
    pub arguments: Vec<Argument>,
}

/// `argument & mask == value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument {
    pub index: u8,
    pub mask: u64,
    pub value: u64,
}

/// The rules for `arch`; what they do not name is answered ENOSYS.
pub(super) fn rules(arch: Arch, options: &Options) -> Vec<ProfileRule> {
    let mut plain: Vec<ProfileRule> = Vec::new();
    let mut by_argument = Vec::new();
    for call in calls(arch).filter(|call| call.number.is_some()) {
        match decision(&call, options) {
            Decision::Answer(answer) => match plain.iter_mut().find(|rule| rule.answer == answer) {
                Some(rule) => rule.names.push(call.name),
                None => plain.push(ProfileRule { names: vec![call.name], answer, arguments: Vec::new() }),
            },
            Decision::Check(check, allow) => {
                let mut cases = Vec::new();
                take_apart(check, &[], &mut cases);
                by_argument.extend(cases.into_iter().map(|(arguments, answer)| {
                    let answer = if answer == Answer::Allow { allow } else { answer };
                    ProfileRule { names: vec![call.name], answer, arguments }
                }));
            }
        }
    }
    plain.into_iter().chain(by_argument).collect()
}

/// Every way through a check, with what holds on it.
fn take_apart(check: &Check, so_far: &[Argument], out: &mut Vec<(Vec<Argument>, Answer)>) {
    let (word, mask, cases, otherwise) = match check {
        Check::Then(answer) => return out.push((so_far.to_vec(), *answer)),
        Check::Match { word, mask, cases, otherwise } => (*word, *mask, *cases, *otherwise),
    };
    let starts = starts(cases.iter());
    for (at, start) in starts.iter().enumerate() {
        let end = starts.get(at + 1).map_or(u32::MAX, |next| next - 1);
        let then = cases.iter().find(|case| fits(case, *start)).map_or(otherwise, |case| case.then());
        for (prefix, fixed) in blocks(*start, end) {
            // A value with bits outside the mask cannot come out of it.
            if prefix & !mask == 0
                && let Some(arguments) = and(so_far, word, mask & fixed, prefix)
            {
                take_apart(then, &arguments, out);
            }
        }
    }
}

/// The conditions with one more; `None` when they cannot hold together.
fn and(so_far: &[Argument], word: Word, mask: u32, value: u32) -> Option<Vec<Argument>> {
    let (index, shift) = match word {
        Word::Low(index) => (index, 0),
        Word::High(index) => (index, 32),
    };
    let (mask, value) = (u64::from(mask) << shift, u64::from(value) << shift);
    let mut all = so_far.to_vec();
    match all.iter_mut().find(|argument| argument.index == index) {
        Some(known) => {
            let both = known.mask & mask;
            if known.value & both != value & both {
                return None;
            }
            known.mask |= mask;
            known.value |= value;
        }
        None if mask != 0 => all.push(Argument { index, mask, value }),
        None => {}
    }
    Some(all)
}

/// The numbers from `start` to `end` as blocks: the bits that are the same in all of a block, and which bits these are.
fn blocks(start: u32, end: u32) -> Vec<(u32, u32)> {
    let (mut at, end) = (u64::from(start), u64::from(end));
    let mut blocks = Vec::new();
    while at <= end {
        let aligned = if at == 0 { 32 } else { at.trailing_zeros() };
        let fitting = 63 - (end - at + 1).leading_zeros();
        let size = 1u64 << aligned.min(fitting);
        // At most 2^32 - 1, and a size of 2^32 leaves no bit fixed.
        blocks.push((at as u32, !((size - 1) as u32)));
        at += size;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::super::list::Refused;
    use super::*;

    #[test]
    fn blocks_cover_a_range_and_nothing_else() {
        for (start, end) in [(0, u32::MAX), (0, 78), (3, 3), (5, 1000), (u32::MAX, u32::MAX), (1, u32::MAX)] {
            let blocks = blocks(start, end);
            let covered = |n: u32| blocks.iter().filter(|(prefix, fixed)| n & fixed == *prefix).count();
            for n in [start, end, start + (end - start) / 2, start + (end - start) / 3] {
                assert_eq!(covered(n), 1, "{n} in {start}..={end}");
            }
            for n in [start.checked_sub(1), end.checked_add(1)].into_iter().flatten() {
                assert_eq!(covered(n), 0, "{n} outside {start}..={end}");
            }
        }
    }

    /// What the rules answer.
    fn ask(rules: &[ProfileRule], name: &str, arguments: [u64; 6]) -> Answer {
        let holds = |a: &Argument| arguments[usize::from(a.index)] & a.mask == a.value;
        let mut fitting = rules.iter().filter(|r| r.names.contains(&name) && r.arguments.iter().all(holds));
        let first = fitting.next().map_or(Answer::Errno(38), |rule| rule.answer);
        assert_eq!(fitting.next(), None, "{name} {arguments:?}");
        first
    }

    /// What a check answers.
    fn run(check: &Check, arguments: [u64; 6]) -> Answer {
        match check {
            Check::Then(answer) => *answer,
            Check::Match { word, mask, cases, otherwise } => {
                let value = match word {
                    Word::Low(index) => arguments[usize::from(*index)] as u32,
                    Word::High(index) => (arguments[usize::from(*index)] >> 32) as u32,
                } & mask;
                let then = cases.iter().find(|case| fits(case, value)).map_or(*otherwise, |case| case.then());
                run(then, arguments)
            }
        }
    }

    #[test]
    fn the_same_answers_as_the_filter() {
        let interesting = [
            0,
            1,
            2,
            5,
            6,
            10,
            16,
            17,
            35,
            58,
            62,
            78,
            79,
            0o1777,
            0o4755,
            0o2644,
            0o020_000,
            0o040,
            0o100,
            0x5412,
            0x541b,
            0x541c,
            0x5423,
            0x5424,
            0x600,
            0x1260,
            0x4008_6602,
            0x8008_6601,
            0x4004_9409,
            0x5000_9401,
            0x0002_0000,
            0x1000_0000,
            0x4000_0000,
            0x7e02_0000,
            0x5961_6d61,
            0x4155_5856,
            0xffff_ffff,
            0x1_0000_0000,
            u64::MAX,
        ];
        for arch in [Arch::X86_64, Arch::Aarch64] {
            for (nesting, refuse) in [(false, Refused::NONE), (true, Refused::NONE), (false, Refused::ALL)] {
                let options = Options { nesting, refuse, ..Options::default() };
                let all = rules(arch, &options);
                // The container engine makes several instructions of each, and the kernel takes 4,096.
                assert!(all.len() < 1050, "{} rules", all.len());
                for call in calls(arch).filter(|call| call.number.is_some()) {
                    let rules: Vec<_> = all.iter().filter(|rule| rule.names.contains(&call.name)).cloned().collect();
                    if let Decision::Answer(answer) = decision(&call, &options) {
                        assert_eq!(ask(&rules, call.name, [0; 6]), answer, "{}", call.name);
                        continue;
                    }
                    for a in interesting {
                        for b in interesting {
                            for c in [0, 0o4755, 1, 6, 0o644, 132] {
                                let arguments = [a, b, c, c, 0, 0];
                                let expected = match decision(&call, &options) {
                                    Decision::Answer(answer) => answer,
                                    Decision::Check(check, _) => run(check, arguments),
                                };
                                assert_eq!(ask(&rules, call.name, arguments), expected, "{} {arguments:?}", call.name);
                            }
                        }
                    }
                }
            }
        }
    }
}
