//! The texts of errors, for people and for logs.

/// Implements `Display` and, with the feature `defmt`, `defmt::Format` with the same texts. For `defmt`, the texts are not in the
/// firmware, and `core::fmt` is not needed.
///
/// Each case is a pattern, a format string whose parameters are all `{}`, and the arguments. At the end of the first line are the
/// type parameters that must have both traits.
#[doc(hidden)]
#[macro_export]
macro_rules! text {
    (
        impl [$($parameter:tt)*] for $type:ty [$($bound:ident),*] {
            $($(#[$attribute:meta])* $pattern:pat => $text:literal $(, $argument:expr)*;)*
        }
    ) => {
        impl<$($parameter)*> core::fmt::Display for $type
        where
            $($bound: core::fmt::Display),*
        {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self {
                    $($(#[$attribute])* $pattern => core::write!(f, $text $(, $argument)*),)*
                }
            }
        }

        #[cfg(feature = "defmt")]
        impl<$($parameter)*> defmt::Format for $type
        where
            $($bound: defmt::Format),*
        {
            fn format(&self, f: defmt::Formatter<'_>) {
                match self {
                    $($(#[$attribute])* $pattern => defmt::write!(f, $text $(, $argument)*),)*
                }
            }
        }
    };
}
