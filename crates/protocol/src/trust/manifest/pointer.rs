//! The current location in a document while we walk it: a JSON Pointer that is only written out when it is needed.

use std::fmt;

/// A place, as a path of steps that lives on the walker's stack.
#[derive(Clone, Copy)]
pub(super) struct Pointer<'a> {
    up: Option<&'a Pointer<'a>>,
    step: PointerStep<'a>,
}

#[derive(Clone, Copy)]
enum PointerStep<'a> {
    /// A pointer that is written already.
    From(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> Pointer<'a> {
    pub(super) fn from(pointer: &'a str) -> Self {
        Self { up: None, step: PointerStep::From(pointer) }
    }

    pub(super) fn key<'b>(&'b self, key: &'b str) -> Pointer<'b> {
        Pointer { up: Some(self), step: PointerStep::Key(key) }
    }

    pub(super) fn index(&self, index: usize) -> Pointer<'_> {
        Pointer { up: Some(self), step: PointerStep::Index(index) }
    }
}

impl Pointer<'_> {
    /// About how many bytes it has, written out.
    pub(super) fn len(&self) -> usize {
        let step = match self.step {
            PointerStep::From(pointer) => pointer.len(),
            PointerStep::Key(key) => 1 + key.len(),
            PointerStep::Index(_) => 4,
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
            PointerStep::From(pointer) => f.write_str(pointer),
            PointerStep::Key(key) if key.contains(['~', '/']) => {
                write!(f, "/{}", key.replace('~', "~0").replace('/', "~1"))
            }
            PointerStep::Key(key) => write!(f, "/{key}"),
            PointerStep::Index(index) => write!(f, "/{index}"),
        }
    }
}
