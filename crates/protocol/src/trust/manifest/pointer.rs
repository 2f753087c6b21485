//! The current location in a document while we walk it: a JSON Pointer that is only written out when it is needed.

use std::fmt;

/// A place, as a path of steps that lives on the walker's stack.
#[derive(Clone, Copy)]
pub(super) struct Pointer<'a> {
    up: Option<&'a Pointer<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    /// A pointer that is written already.
    From(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> Pointer<'a> {
    pub fn from(pointer: &'a str) -> Self {
        Self { up: None, step: Step::From(pointer) }
    }

    pub fn key<'b>(&'b self, key: &'b str) -> Pointer<'b> {
        Pointer { up: Some(self), step: Step::Key(key) }
    }

    pub fn index(&self, index: usize) -> Pointer<'_> {
        Pointer { up: Some(self), step: Step::Index(index) }
    }
}

impl Pointer<'_> {
    /// About how many bytes it has, written out.
    pub fn len(&self) -> usize {
        let step = match self.step {
            Step::From(pointer) => pointer.len(),
            Step::Key(key) => 1 + key.len(),
            Step::Index(_) => 4,
        };
        step + self.up.map_or(0, Pointer::len)
    }
}

impl fmt::Display for Pointer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(up) = self.up {
            up.fmt(f)?;
        }
        match self.step {
            Step::From(pointer) => f.write_str(pointer),
            Step::Key(key) if key.contains(['~', '/']) => {
                write!(f, "/{}", key.replace('~', "~0").replace('/', "~1"))
            }
            Step::Key(key) => write!(f, "/{key}"),
            Step::Index(index) => write!(f, "/{index}"),
        }
    }
}
