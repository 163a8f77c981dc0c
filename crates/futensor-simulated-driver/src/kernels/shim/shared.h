// Tells the simulator of each access that a kernel makes, so that it sees races in shared memory (shared.rs).
// Put behind core.h where that is asked for: g++ then calls what ThreadSanitizer's runtime would be called, and
// this is that runtime. Volatile accesses are atomics' (warp.h), and race with nothing.

struct futsim_hooks_t {
    void (*shared)(unsigned long long epoch, void* at, size_t bytes);
    void (*touch)(unsigned long long epoch, unsigned thread, const void* at, size_t bytes, unsigned write);
};
extern "C" __attribute__((used, visibility("default"))) futsim_hooks_t futsim_hooks = {0, 0};

#undef FUTSIM_FRESH
#define FUTSIM_FRESH(name)                                      \
    do {                                                        \
        static unsigned long long futsim_seen;                  \
        if (futsim_seen != futsim_epoch) {                      \
            futsim_seen = futsim_epoch;                         \
            memset((void*)&name, 0xff, sizeof(name));           \
            futsim_hooks.shared(futsim_epoch, (void*)&name, sizeof(name)); \
        }                                                       \
    } while (0)

#define FUTSIM_HOOK extern "C" __attribute__((used, no_sanitize("thread"))) void
#define FUTSIM_TOUCH(bytes, write) \
    if (futsim_hooks.touch) futsim_hooks.touch(futsim_epoch, futsim_s.current, p, bytes, write)
#define FUTSIM_HOOKS(n)                                                        \
    FUTSIM_HOOK __tsan_read##n(void* p) { FUTSIM_TOUCH(n, 0); }                \
    FUTSIM_HOOK __tsan_write##n(void* p) { FUTSIM_TOUCH(n, 1); }               \
    FUTSIM_HOOK __tsan_unaligned_read##n(void* p) { FUTSIM_TOUCH(n, 0); }      \
    FUTSIM_HOOK __tsan_unaligned_write##n(void* p) { FUTSIM_TOUCH(n, 1); }     \
    FUTSIM_HOOK __tsan_volatile_read##n(void*) {}                              \
    FUTSIM_HOOK __tsan_volatile_write##n(void*) {}                             \
    FUTSIM_HOOK __tsan_unaligned_volatile_read##n(void*) {}                    \
    FUTSIM_HOOK __tsan_unaligned_volatile_write##n(void*) {}
FUTSIM_HOOKS(1)
FUTSIM_HOOKS(2)
FUTSIM_HOOKS(4)
FUTSIM_HOOKS(8)
FUTSIM_HOOKS(16)
FUTSIM_HOOK __tsan_read_range(void* p, long bytes) { FUTSIM_TOUCH(bytes, 0); }
FUTSIM_HOOK __tsan_write_range(void* p, long bytes) { FUTSIM_TOUCH(bytes, 1); }
FUTSIM_HOOK __tsan_func_entry(void*) {}
FUTSIM_HOOK __tsan_func_exit(void*) {}
FUTSIM_HOOK __tsan_init() {}
