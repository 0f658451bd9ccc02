//! As much of D-Bus as it takes to ask for a scope: one call is written, and of what comes back only the end of the job and
//! errors are understood. Pure; whatever the bytes are, nothing panics.

/// The part of a message that is always there: order of bytes, type, flags, version, length of the body, serial number, and
/// length of the fields that follow.
pub(super) const HEAD: usize = 16;
const CALL: u8 = 1;
pub(super) const ERROR: u8 = 3;
pub(super) const SIGNAL: u8 = 4;
/// Fields of a message.
pub(super) const PATH: u8 = 1;
const INTERFACE: u8 = 2;
pub(super) const MEMBER: u8 = 3;
pub(super) const ERROR_NAME: u8 = 4;
const DESTINATION: u8 = 6;
pub(super) const SIGNATURE: u8 = 8;

/// A message in the making. Every value starts at a multiple of its size.
#[derive(Default)]
pub(super) struct Out(pub(super) Vec<u8>);

impl Out {
    pub(super) fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    pub(super) fn number(&mut self, number: u32) {
        self.align(4);
        self.0.extend(number.to_le_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len() as u32);
        self.0.extend(text.bytes().chain([0]));
    }

    fn signature(&mut self, signature: &str) {
        self.0.push(signature.len() as u8);
        self.0.extend(signature.bytes().chain([0]));
    }

    /// Elements that start at multiples of `step`, after their length together.
    pub(super) fn array(&mut self, step: usize, fill: impl FnOnce(&mut Out)) {
        self.number(0);
        let length = self.0.len() - 4;
        self.align(step);
        let start = self.0.len();
        fill(self);
        let filled = (self.0.len() - start) as u32;
        self.0[length..length + 4].copy_from_slice(&filled.to_le_bytes());
    }

    pub(super) fn field(&mut self, code: u8, signature: &str, value: &str) {
        self.align(8);
        self.0.push(code);
        self.signature(signature);
        if signature == "g" { self.signature(value) } else { self.text(value) }
    }

    fn property(&mut self, name: &str, signature: &str, value: impl FnOnce(&mut Out)) {
        self.align(8);
        self.text(name);
        self.signature(signature);
        value(self);
    }
}

/// The call that makes the scope.
pub(super) fn call(unit: &str) -> Vec<u8> {
    let mut body = Out::default();
    body.text(unit);
    body.text("fail");
    body.array(8, |out| {
        out.property("Description", "s", |out| out.text("Boxes of ringfence"));
        // Whoever asks: that is right in any namespace of processes.
        out.property("PIDs", "au", |out| out.array(4, |out| out.number(0)));
        out.property("Delegate", "b", |out| out.number(1));
        // A box has the limit that was asked for, and the scope of a login has none.
        out.property("TasksMax", "t", |out| {
            out.align(8);
            out.0.extend(u64::MAX.to_le_bytes());
        });
        // Nothing stays of it, however it ends.
        out.property("CollectMode", "s", |out| out.text("inactive-or-failed"));
    });
    body.array(8, |_| {});
    let mut message = Out(vec![b'l', CALL, 0, 1]);
    message.number(body.0.len() as u32);
    message.number(1);
    message.array(8, |out| {
        out.field(PATH, "o", "/org/freedesktop/systemd1");
        out.field(INTERFACE, "s", "org.freedesktop.systemd1.Manager");
        out.field(MEMBER, "s", "StartTransientUnit");
        out.field(DESTINATION, "s", "org.freedesktop.systemd1");
        out.field(SIGNATURE, "g", "ssa(sv)a(sa(sv))");
    });
    message.align(8);
    message.0.extend(body.0);
    message.0
}

/// A message as it is read; `None` for what is none.
pub(super) struct In<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> In<'a> {
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    pub(super) fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    pub(super) fn number(&mut self) -> Option<u32> {
        self.align(4);
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn text_of(&mut self, length: usize) -> Option<&'a str> {
        let text = std::str::from_utf8(self.take(length)?).ok()?;
        (self.byte()? == 0).then_some(text)
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        let length = self.number()?;
        self.text_of(length as usize)
    }

    pub(super) fn signature(&mut self) -> Option<&'a str> {
        let length = self.byte()?;
        self.text_of(length.into())
    }
}

/// Where the body of a message begins, and its length.
pub(super) fn body(message: &[u8]) -> Option<(usize, usize)> {
    let number = |at| In { bytes: message, at }.number().map(|number| number as usize);
    let start = HEAD.checked_add(number(12)?)?.checked_next_multiple_of(8)?;
    (message[0] == b'l').then_some((start, number(4)?))
}

#[derive(Debug, PartialEq)]
pub(super) enum News {
    Done,
    Failed(String),
    Other,
}

/// What a message says about the unit: that its job is over, or that there is none.
pub(super) fn news(message: &[u8], unit: &str) -> Option<News> {
    let (start, _) = body(message)?;
    let end = HEAD + In { bytes: message, at: 12 }.number()? as usize;
    let (mut member, mut error) = ("", "");
    let mut fields = In { bytes: message.get(..end)?, at: HEAD };
    while fields.at < end {
        fields.align(8);
        let code = fields.byte()?;
        let value = match fields.signature()? {
            "s" | "o" => fields.text()?,
            "g" => fields.signature()?,
            "u" => fields.number().map(|_| "")?,
            _ => return None,
        };
        match code {
            MEMBER => member = value,
            ERROR_NAME => error = value,
            _ => {}
        }
    }
    // A name or a word; it is shown.
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    let failed = |text: &str| plain(text).then(|| News::Failed(text.to_owned()));
    match message[1] {
        // There is but one call.
        ERROR => failed(error),
        SIGNAL if member == "JobRemoved" => {
            let mut values = In { bytes: message.get(start..)?, at: 0 };
            let (_, _, of, result) = (values.number()?, values.text()?, values.text()?, values.text()?);
            match result {
                _ if of != unit => Some(News::Other),
                "done" => Some(News::Done),
                result => failed(result),
            }
        }
        _ => Some(News::Other),
    }
}
