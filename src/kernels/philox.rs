//! Philox 4x32-10: counter-based random words (Salmon et al., "Parallel random numbers: as easy as
//! 1, 2, 3", SC 2011). Block `i` of a seed is a pure function of both.
