//! The reply to a request that creates something and may be repeated.

/// A value, and whether this request created it. If not, an earlier request had.
#[derive(Clone, Debug, PartialEq)]
pub struct Created<T> {
    pub value: T,
    pub is_new: bool,
}

impl<T> Created<T> {
    pub fn new(value: T) -> Self {
        Self { value, is_new: true }
    }

    pub fn existing(value: T) -> Self {
        Self { value, is_new: false }
    }
}
