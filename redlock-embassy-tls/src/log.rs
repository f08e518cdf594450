//! Log macros: through `defmt` if that feature is on, otherwise through `log` if that feature is on.

macro_rules! warning {
    ($format:literal $(, $argument:expr)* $(,)?) => {{
        #[cfg(feature = "defmt")]
        defmt::warn!($format $(, $argument)*);
        #[cfg(all(feature = "log", not(feature = "defmt")))]
        log::warn!($format $(, $argument)*);
        #[cfg(not(any(feature = "defmt", feature = "log")))]
        { $(let _unused = &$argument;)* }
    }};
}

pub(crate) use warning;
