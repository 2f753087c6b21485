//! The words of enums, as they are on the wire and in the store.

/// Implements `ALL`, `as_str` and its inverse `parse` from one table, so that none of them can lack a variant.
macro_rules! enum_words {
    ($name:ident { $($variant:ident => $word:literal),+ $(,)? }) => {
        impl $name {
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            pub fn parse(text: &str) -> Option<Self> {
                match text { $($word => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}
