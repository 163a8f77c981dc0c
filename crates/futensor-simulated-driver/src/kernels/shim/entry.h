// How the simulator calls a kernel and learns its parameters: one futsim_entry a kernel, written out by
// compile.rs after the source. The C++ compiler itself says which parameter is a pointer and whether what
// it points at is const, so a typedef or a macro in the signature hides nothing from the race check.

template <class T> struct futsim_plain { typedef T type; };
template <class T> struct futsim_plain<const T> { typedef T type; };
template <class T> struct futsim_plain<volatile T> { typedef T type; };
template <class T> struct futsim_plain<const volatile T> { typedef T type; };
template <class T> struct futsim_points { enum { at = 0, kind = 0 }; };
template <class T> struct futsim_points<T*> { enum { at = 1, kind = 2 }; };
template <class T> struct futsim_points<const T*> { enum { at = 1, kind = 1 }; };
template <class T> struct futsim_points<T* __restrict__> { enum { at = 1, kind = 2 }; };
template <class T> struct futsim_points<const T* __restrict__> { enum { at = 1, kind = 1 }; };

// emit(to, what, parameter, offset, size); what: 0 a parameter, 1 a pointer that is read, 2 one that is
// written, 3 a class whose fields are not known.
typedef void (*futsim_emit)(void* to, unsigned what, unsigned parameter, unsigned offset, unsigned size);
struct futsim_walk {
    futsim_emit emit;
    void* to;
    unsigned parameter;
    template <class T> void field(unsigned offset) const;
};
template <class T> struct futsim_fields {
    static void visit(const futsim_walk& w, unsigned offset) {
        if (__is_class(T) || __is_union(T)) w.emit(w.to, 3, w.parameter, offset, sizeof(T));
    }
};
template <class T> struct futsim_shape {
    static void visit(const futsim_walk& w, unsigned offset) {
        if (futsim_points<T>::at)
            w.emit(w.to, futsim_points<T>::kind, w.parameter, offset, sizeof(T));
        else
            futsim_fields<T>::visit(w, offset);
    }
};
template <class T, size_t N> struct futsim_shape<T[N]> {
    static void visit(const futsim_walk& w, unsigned offset) {
        for (size_t i = 0; i < N; i++) w.field<T>(offset + i * sizeof(T));
    }
};
template <class T> void futsim_walk::field(unsigned offset) const {
    futsim_shape<typename futsim_plain<T>::type>::visit(*this, offset);
}

template <unsigned... I> struct futsim_list {};
template <unsigned N, unsigned... I> struct futsim_count : futsim_count<N - 1, N - 1, I...> {};
template <unsigned... I> struct futsim_count<0, I...> { typedef futsim_list<I...> type; };

template <class F, F k> struct futsim_kernel;
template <class... P, void (*k)(P...)> struct futsim_kernel<void (*)(P...), k> {
    template <unsigned... I> static void loop(void** a, futsim_list<I...>) {
        (void)a;
        while (futsim_next()) k(*(typename futsim_plain<P>::type*)a[I]...);
    }
    static void work(void** a) { loop(a, typename futsim_count<sizeof...(P)>::type()); }
    template <class T> static int tell(futsim_emit emit, void* to, unsigned i) {
        emit(to, 0, i, alignof(T), sizeof(T));
        futsim_walk{emit, to, i}.template field<T>(0);
        return 0;
    }
    template <unsigned... I> static void each(futsim_emit emit, void* to, futsim_list<I...>) {
        int all[] = {0, tell<P>(emit, to, I)...};
        (void)all, (void)emit, (void)to;
    }
    static void describe(futsim_emit emit, void* to) {
        each(emit, to, typename futsim_count<sizeof...(P)>::type());
    }
};
struct futsim_entry {
    const char* name;
    void (*work)(void** arguments);
    void (*describe)(futsim_emit, void*);
};
#define FUTSIM_ENTRY(text, ...) \
    {text, futsim_kernel<decltype(&__VA_ARGS__), &__VA_ARGS__>::work, futsim_kernel<decltype(&__VA_ARGS__), &__VA_ARGS__>::describe}
