//! The book: a chapter for each question, with examples that are compiled and run.
//!
//! The chapters are the files of `docs/`. On a forge their links lead from file to file; here the
//! definitions in front of each chapter come first, and lead from page to page.

/// A chapter: its module, its file, and the targets of its links.
macro_rules! chapters {
    ($($(#[$title:meta])* $name:ident $file:literal;)*) => {
        $(
            #[doc = "[concepts]: crate::book::concepts"]
            #[doc = "[first-service]: crate::book::first_service"]
            #[doc = "[serving]: crate::book::serving"]
            #[doc = "[training]: crate::book::training"]
            #[doc = "[ranks]: crate::book::ranks"]
            #[doc = "[gpus]: crate::book::gpus"]
            #[doc = "[debugging]: crate::book::debugging"]
            #[doc = "[architecture]: crate::book::architecture"]
            #[doc = "[decisions]: crate::book::decisions"]
            #[doc = "[ranks-internals]: crate::book::how_ranks_work"]
            #[doc = "[beyond-two-cores]: crate::book::beyond_two_cores"]
            #[doc = "[features]: crate::book::features"]
            #[doc = ""]
            #[doc = include_str!($file)]
            pub mod $name {}
        )*
    };
}

chapters! {
    first_service "../docs/first-service.md";
    concepts "../docs/concepts.md";
    from_pytorch "../docs/from-pytorch.md";
    from_candle "../docs/from-candle.md";
    serving "../docs/serving.md";
    training "../docs/training.md";
    ranks "../docs/ranks.md";
    gpus "../docs/gpus.md";
    language_models "../docs/language-models.md";
    debugging "../docs/debugging.md";
    ops "../docs/ops.md";
    features "../docs/features.md";
    examples "../docs/examples.md";
    architecture "ARCHITECTURE.md";
    decisions "../docs/decisions.md";
    how_ranks_work "../docs/ranks-internals.md";
    beyond_two_cores "../docs/beyond-two-cores.md";
}

/// The front page's program, which is tried like every other example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod front_page {}
