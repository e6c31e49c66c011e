// Exact transport by successive shortest chains; one level. dispatch/solver_cuda_reference.py is the same in numpy.
//
// Legend: k samples of this level (every stride-th of the matrix), n workers. Three launches:
//   place    every sample at its least cost + price; counts per worker
//   seat     per worker: its samples in order, and its best move to every other worker
//   augment  one block: chains from over-full workers to workers with room, until none is over-full
// Everything that is compared is unique or ordered by sample number, so equal input gives equal output.

#define INF __longlong_as_double(0x7ff0000000000000LL)
#define THREADS 1024
#define WARPS 32
#define FOLDS 4    // workers a lane looks after: 128 in all
#define FULL 1024  // above every worker's number
#define FEW 8  // more samples than this moved at once: scan their workers anew rather than adjust

struct Best {  // the least change that a move makes, how many samples make it, and the first of them
    double change;
    int tied, mover;
};

__device__ Best merge(Best x, Best y) {
    if (y.change < x.change) return y;
    if (x.change == y.change) {
        x.tied += y.tied;
        x.mover = min(x.mover, y.mover);
    }
    return x;
}

__device__ unsigned least_in_warp(unsigned x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(~0u, x);
#else
    for (int step = 16; step; step >>= 1) x = min(x, __shfl_xor_sync(~0u, x, step));
    return x;
#endif
}

// The warp's least value, in two halves, which is several times sooner than by shuffling doubles. No -0.0 may occur.
__device__ double least_in_warp(double x) {
    unsigned flip = __double2hiint(x) >> 31;  // all ones if negative: then larger bits are smaller values
    unsigned high = __double2hiint(x) ^ (flip | 0x80000000u), low = __double2loint(x) ^ flip;
    unsigned least_high = least_in_warp(high), least_low = least_in_warp(high == least_high ? low : ~0u);
    unsigned back = least_high >> 31 ? 0u : ~0u;
    return __hiloint2double(least_high ^ (back | 0x80000000u), least_low ^ back);
}

__device__ Best merge_warp(Best best) {
    double change = least_in_warp(best.change);
    bool is_least = best.change == change;
    int tied = is_least ? best.tied : 0;
    for (int step = 16; step; step >>= 1) tied += __shfl_xor_sync(~0u, tied, step);
    return {change, tied, (int)least_in_warp(is_least ? (unsigned)best.mover : ~0u)};
}

// What moving a sample from a to b changes its cost by; adding zero turns -0.0 into 0.0.
__device__ double change_of(const double* row, int a, int b) { return row[b] - row[a] + 0.0; }

// `lanes` threads (a power of two, at most 32) share one sample
extern "C" __global__ void place(const double* cost, int k, int n, int stride, int lanes, const double* price,
                                 unsigned char* at, int* count) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) / lanes, lane = threadIdx.x & (lanes - 1);
    double least = INF;
    int turn = n;  // among equals the first one counted from worker (sample mod n), which spreads them
    for (int j = lane; i < k && j < n; j += lanes) {
        double here = cost[i * (long long)stride * n + j] + price[j];
        int turned = (j - i % n + n) % n;
        if (here < least || (here == least && turned < turn)) least = here, turn = turned;
    }
    for (int step = lanes >> 1; step; step >>= 1) {
        double other = __shfl_xor_sync(~0u, least, step);
        int turned = __shfl_xor_sync(~0u, turn, step);
        if (other < least || (other == least && turned < turn)) least = other, turn = turned;
    }
    if (i < k && lane == 0) {
        int j = (turn + i % n) % n;
        at[i] = j;
        atomicAdd(count + j, 1);
    }
}

// one block of 256 threads a worker
extern "C" __global__ void seat(const double* cost, int k, int n, int stride, const unsigned char* at, const int* count,
                                const int* capacity, int* first, int* seated, int* seat_of, double* least, int* tied,
                                int* mover) {
    __shared__ int base, filled, in_warp[8];
    __shared__ Best part[256];
    int a = blockIdx.x, t = threadIdx.x, lane = t & 31, warp = t >> 5;
    if (t == 0) {
        base = filled = 0;
        // as many seats as it will ever need: those it fills or may fill
        for (int j = 0; j < a; ++j) base += max(capacity[j], count[j]);
        first[a] = base;
    }
    __syncthreads();
    // its samples, in order
    for (int begin = 0; begin < k; begin += 256) {
        bool mine = begin + t < k && at[begin + t] == a;
        unsigned votes = __ballot_sync(~0u, mine);
        if (lane == 0) in_warp[warp] = __popc(votes);
        __syncthreads();
        int place = base + filled + __popc(votes & ((1u << lane) - 1)), all = 0;
        for (int w = 0; w < 8; ++w) {
            place += w < warp ? in_warp[w] : 0;
            all += in_warp[w];
        }
        if (mine) seated[place] = begin + t, seat_of[begin + t] = place;
        __syncthreads();
        if (t == 0) filled += all;
        __syncthreads();
    }
    // its best move to every other worker: `wide` threads side by side, each for one worker
    int wide = 1;
    while (wide < n) wide *= 2;
    int b = t % wide, groups = 256 / wide;
    Best best = {INF, 0, k};
    for (int q = t / wide; b < n && q < filled; q += groups) {
        int i = seated[base + q];
        const double* row = cost + i * (long long)stride * n;
        Best one = {change_of(row, a, b), 1, i};
        best = merge(best, one);
    }
    part[t] = best;
    __syncthreads();
    if (t < n) {
        for (int g = 1; g < groups; ++g) best = merge(best, part[g * wide + t]);
        least[a * n + t] = best.change;
        tied[a * n + t] = best.tied;
        mover[a * n + t] = best.mover;
    }
}

// ── augment ──────────────────────────────────────────────────────────────────────────────────────────────────────────
struct Level {  // arrays of one level, in device memory
    const double* cost;
    int k, n, stride;
    unsigned char* at;
    int *seated, *seat_of, *mover;  // mover is up to date where one sample is tied, and -1 if it has to be looked for
    int *moved, *left;              // from start[pair] on, `amount` each: samples that move, seats they leave
    int* stale;                     // pairs to scan anew
};

struct Table {  // the same in shared memory
    double* least;  // [b][a], rows of n + 1: threads side by side read neighbours
    int* tied;      // [a][b]
    double *price, *distance;
    int *room, *idle, *count, *first, *before;
    int *chain, *start;  // start of a pair of the chain is -1 where idle places move
    int hops, amount, stales;
};

__device__ const double* row_of(const Level& L, int i) { return L.cost + i * (long long)L.stride * L.n; }

__device__ bool takes_idle(const Level& L, const Table& T, int a, int b) {
    return T.idle[a] > 0 && T.least[b * (L.n + 1) + a] >= 0.0;
}

__device__ double pair_length(const Level& L, const Table& T, int a, int b) {
    double change = T.least[b * (L.n + 1) + a];
    if (T.idle[a] > 0 && change > 0.0) change = 0.0;
    double length = change + T.price[b] - T.price[a];
    return length > 0.0 ? length : 0.0;  // rounding may leave a tight pair a hair below zero
}

// Every worker's distance over one pair from the nearest over-full one; `lanes` threads share one worker b.
__device__ void reach_from_sources(const Level& L, Table& T, int lanes) {
    int n = L.n, b = threadIdx.x >> (31 - __clz(lanes)), through = n;
    double best = INF;
    for (int a = threadIdx.x & (lanes - 1); b < n && a < n; a += lanes) {
        if (T.room[a] >= 0) continue;
        double reach = pair_length(L, T, a, b);
        if (reach < best) best = reach, through = a;
    }
    for (int step = lanes >> 1; step; step >>= 1) {
        double other = __shfl_xor_sync(~0u, best, step);
        int a = __shfl_xor_sync(~0u, through, step);
        if (other < best || (other == best && a < through)) best = other, through = a;
    }
    if (b < n && (threadIdx.x & (lanes - 1)) == 0) T.distance[b] = best, T.before[b] = T.room[b] < 0 ? -1 : through;
    __syncthreads();
}

// One warp, Dijkstra: goes on to the nearest worker with room, which it returns, and raises prices so that the chain
// to it is free. Each lane has up to FOLDS workers in registers.
__device__ int find_target(const Level& L, Table& T) {
    int n = L.n, lane = threadIdx.x;
    double distance[FOLDS];
    bool open[FOLDS];
#pragma unroll
    for (int x = 0; x < FOLDS; ++x) {
        int j = lane + 32 * x;
        open[x] = j < n && T.room[j] >= 0;
        distance[x] = j < n ? (open[x] ? T.distance[j] : 0.0) : INF;
    }
    while (true) {
        double nearest = INF;
        int code = 2 * FULL;  // a worker's number, plus FULL if it has no room: among equals those with room come first
#pragma unroll
        for (int x = 0; x < FOLDS; ++x) {
            if (32 * x >= n) break;
            int j = lane + 32 * x, own = open[x] ? (T.room[j] > 0 ? j : j + FULL) : 2 * FULL;
            if (open[x] && (distance[x] < nearest || (distance[x] == nearest && own < code)))
                nearest = distance[x], code = own;
        }
        double own_nearest = nearest;
        nearest = least_in_warp(own_nearest);
        code = least_in_warp(own_nearest == nearest ? (unsigned)code : 2u * FULL);
        if (code < FULL) {
#pragma unroll
            for (int x = 0; x < FOLDS; ++x)
                if (lane + 32 * x < n && distance[x] < nearest) T.price[lane + 32 * x] += nearest - distance[x];
            return code;
        }
        int here = code - FULL;
#pragma unroll
        for (int x = 0; x < FOLDS; ++x) {
            if (32 * x >= n) break;
            int j = lane + 32 * x;
            if (j == here) open[x] = false;
            if (!open[x]) continue;
            double reach = nearest + pair_length(L, T, here, j);
            if (reach < distance[x]) distance[x] = reach, T.before[j] = here;
        }
    }
}

// The chain from an over-full worker to the nearest one with room, and how much fits through it.
__device__ void choose_chain(const Level& L, Table& T, int* shared_hops, int* shared_amount) {
    int n = L.n;
    if (threadIdx.x < 32) {
        int target = find_target(L, T);
        __syncwarp();
        if (threadIdx.x == 0) {
            int hops = 0, amount = T.room[target];
            for (int b = target; T.before[b] >= 0; b = T.before[b], ++hops) {
                int a = T.before[b];
                bool idle = takes_idle(L, T, a, b);
                amount = min(amount, idle ? T.idle[a] : T.tied[a * n + b]);
                T.chain[n - hops] = b, T.chain[n - hops - 1] = a;  // from the far end
                T.start[n - hops - 1] = idle ? -1 : 0;
            }
            amount = min(amount, -T.room[T.chain[n - hops]]);
            for (int h = 0, start = 0; h <= hops; ++h) {  // samples of different pairs differ, so all fit into k places
                T.chain[h] = T.chain[n - hops + h];
                T.start[h] = h == hops || T.start[n - hops + h] < 0 ? -1 : start;
                start += T.start[h] < 0 ? 0 : amount;
            }
            *shared_hops = hops, *shared_amount = amount;
        }
    }
    __syncthreads();
    T.hops = *shared_hops, T.amount = *shared_amount;
}

// One warp a pair: the first `amount` samples, in order of seats, that are tied.
__device__ void choose_samples(const Level& L, Table& T) {
    int n = L.n, lane = threadIdx.x & 31;
    for (int h = threadIdx.x >> 5; h < T.hops; h += WARPS) {
        if (T.start[h] < 0) continue;
        int a = T.chain[h], b = T.chain[h + 1], *moved = L.moved + T.start[h], *left = L.left + T.start[h];
        int only = T.tied[a * n + b] == 1 ? L.mover[a * n + b] : -1;
        if (only >= 0) {
            if (lane == 0) moved[0] = only, left[0] = L.seat_of[only], L.at[only] = b;
        } else {
            double wanted = T.least[b * (n + 1) + a];
            for (int q = 0, found = 0; found < T.amount && q < T.count[a]; q += 32) {
                int place = T.first[a] + q + lane, i = q + lane < T.count[a] ? L.seated[place] : -1;
                bool fits = i >= 0 && change_of(row_of(L, i), a, b) == wanted;
                unsigned votes = __ballot_sync(~0u, fits);
                int mine = found + __popc(votes & ((1u << lane) - 1));
                if (fits && mine < T.amount) moved[mine] = i, left[mine] = place, L.at[i] = b;
                found += __popc(votes);
            }
        }
    }
    __syncthreads();
}

// One warp a worker of the chain: seats, room, idle places, and what is known of its best moves.
__device__ void move_samples(const Level& L, Table& T, int* stales) {
    int n = L.n, lane = threadIdx.x & 31, amount = T.amount;
    for (int h = threadIdx.x >> 5; h <= T.hops; h += WARPS) {
        int v = T.chain[h];
        bool has_out = h < T.hops && T.start[h] >= 0, has_in = h > 0 && T.start[h - 1] >= 0;
        const int *out = L.moved + T.start[h], *left = L.left + T.start[h], *in = L.moved + (has_in ? T.start[h - 1] : 0);
        int idle = (h > 0 && !has_in ? amount : 0) - (h < T.hops && !has_out ? amount : 0);
        int end = T.first[v] + T.count[v];
        // 1. Seats: who comes in sits where somebody left, or at the end; a gap is filled from the end.
        if (has_in) {
            for (int q = lane; q < amount; q += 32) {
                int place = has_out ? left[q] : end + q;
                L.seated[place] = in[q], L.seat_of[in[q]] = place;
            }
        } else if (has_out) {
            for (int q = end - amount, filled = 0; q < end; q += 32) {
                int i = q + lane < end ? L.seated[q + lane] : -1;
                bool stays = i >= 0 && L.at[i] == v;
                unsigned votes = __ballot_sync(~0u, stays);
                int mine = filled + __popc(votes & ((1u << lane) - 1));
                if (stays) L.seated[left[mine]] = i, L.seat_of[i] = left[mine];
                filled += __popc(votes);
            }
        }
        // 2. Best moves from here: take out who left, put in who came; scan anew where nobody tied is left.
        for (int c = lane; c < n; c += 32) {
            if (c == v || !(has_out || has_in)) continue;
            double least = T.least[c * (n + 1) + v];
            int tied = T.tied[v * n + c], mover = tied == 1 ? L.mover[v * n + c] : -1;
            if (amount > FEW) tied = 0;
            if (has_out && tied) {
                for (int q = 0; q < amount; ++q) tied -= change_of(row_of(L, out[q]), v, c) == least;
                mover = -1;
                if (tied == T.tied[v * n + c] && tied == 1) mover = L.mover[v * n + c];
            }
            bool known = amount <= FEW;  // what is left, if anything, changes the cost by `least` or more
            for (int q = 0; has_in && known && q < amount; ++q) {
                double change = change_of(row_of(L, in[q]), v, c);
                if (change < least || (change == least && tied == 0)) least = change, tied = 1, mover = in[q];
                else if (change == least) ++tied;
            }
            T.least[c * (n + 1) + v] = least, T.tied[v * n + c] = tied, L.mover[v * n + c] = mover;
            if (tied == 0) L.stale[atomicAdd(stales, 1)] = v * n + c;
        }
        __syncwarp();
        if (lane == 0) {
            T.idle[v] += idle;
            T.count[v] += (has_in ? amount : 0) - (has_out ? amount : 0);
            if (h == 0) T.room[v] += amount;
            if (h == T.hops) T.room[v] -= amount;
        }
    }
    __syncthreads();
    T.stales = *stales;
}

// Scans all samples of a for its best move to b, for every stale pair; several warps a pair where pairs are few.
__device__ void scan_stale(const Level& L, Table& T, Best* part) {
    int n = L.n, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, share = 1;
    while (share < 8 && T.stales * share * 2 <= WARPS) share *= 2;
    for (int begin = 0; begin < T.stales; begin += WARPS / share) {
        int p = begin + warp / share;
        Best best = {INF, 0, L.k};
        int pair = p < T.stales ? L.stale[p] : 0, a = pair / n, b = pair % n;
        int count = p < T.stales ? T.count[a] : 0;
#pragma unroll 4
        for (int q = (warp % share) * 32 + lane; q < count; q += 32 * share) {
            int i = L.seated[T.first[a] + q];
            Best one = {change_of(row_of(L, i), a, b), 1, i};
            best = merge(best, one);
        }
        best = merge_warp(best);
        if (lane == 0) part[warp] = best;
        __syncthreads();
        if (lane == 0 && warp % share == 0 && p < T.stales) {
            for (int w = 1; w < share; ++w) best = merge(best, part[warp + w]);
            T.least[b * (n + 1) + a] = best.change, T.tied[pair] = best.tied, L.mover[pair] = best.mover;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    augment(const double* cost, int k, int n, int stride, const int* capacity, const int* count, const int* first,
            const double* least, const int* tied, double* price, unsigned char* at, int* seated, int* seat_of,
            int* mover, int* moved, int* left, int* stale, int* rounds) {
    extern __shared__ double memory[];
    __shared__ Best part[WARPS];
    __shared__ int hops, amount, stales;
    Level L = {cost, k, n, stride, at, seated, seat_of, mover, moved, left, stale};
    Table T;
    T.least = memory, T.price = T.least + n * (n + 1), T.distance = T.price + n;
    T.tied = (int*)(T.distance + n), T.room = T.tied + n * n, T.idle = T.room + n, T.count = T.idle + n;
    T.first = T.count + n, T.before = T.first + n;
    T.chain = T.before + n, T.start = T.chain + n + 1;  // n + 1 of either
    int t = threadIdx.x;
    for (int pair = t; pair < n * n; pair += THREADS) {
        T.least[pair % n * (n + 1) + pair / n] = least[pair];
        T.tied[pair] = tied[pair];
    }
    for (int j = t; j < n; j += THREADS) {
        T.price[j] = price[j], T.count[j] = count[j], T.first[j] = first[j];
        T.room[j] = capacity[j] - count[j], T.idle[j] = 0;
    }
    __syncthreads();
    if (t == 0) {  // places that nobody needs are idle, at the least price
        int cheapest = 0, idle = 0;
        for (int j = 0; j < n; ++j) {
            idle += T.room[j];
            if (T.price[j] < T.price[cheapest]) cheapest = j;
        }
        T.idle[cheapest] = idle, T.room[cheapest] -= idle;
    }
    __syncthreads();
    int lanes = 1, done = 0;
    while (lanes < 32 && lanes < n && lanes * 2 * n <= THREADS) lanes *= 2;
    while (__syncthreads_or(t < n && T.room[t] < 0)) {
        if (t == 0) stales = 0;
        reach_from_sources(L, T, lanes);     // 1. first pairs of all chains
        choose_chain(L, T, &hops, &amount);  // 2. the nearest with room, prices, how much fits through
        choose_samples(L, T);                // 3. who moves
        move_samples(L, T, &stales);         // 4. seats and counts
        scan_stale(L, T, part);              // 5. best moves that are not known any more
        ++done;
    }
    for (int j = t; j < n; j += THREADS) price[j] = T.price[j];
    if (t == 0) *rounds += done;
}
