/// Declares an enum whose values have one word each outside: in databases, in JSON, in figures. The word is written
/// once, beside its value.
///
/// What is read back may be of another version: it stays text wherever it is only kept and shown, and is parsed where
/// something is decided from it.
macro_rules! spelled {
    ($(#[$about:meta])* pub enum $name:ident { $($(#[$what:meta])* $value:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$what])* $value,)+
        }

        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$value,)+];

            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$value => $word,)+
                }
            }

            /// None for a word of another version.
            pub fn parse(word: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|value| value.as_str() == word)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use spelled;
