// The cost of every sample on every worker, as dispatch/placement/assign/cost.py computes it, bit for bit.
// Legend: B samples, F keys a sample, U distinct rows, n workers, Q words of 64 workers.
// States: 0 CLEAN, 1 OWNED, 2 SPLIT.

// What it costs if every holder of a row pushes it.
extern "C" __global__ void pushes(const unsigned char* state_U, const unsigned long long* holders_UQ,
                                  const double* push_cost_n, double value_share, int rows, int words, double* pushes_U) {
    int u = blockIdx.x * blockDim.x + threadIdx.x;
    if (u >= rows) return;
    double sum = 0.0;
    for (int q = 0; state_U[u] != 0 && q < words; ++q)
        for (unsigned long long left = holders_UQ[u * (long long)words + q]; left; left &= left - 1)
            sum += push_cost_n[q * 64 + __ffsll(left) - 1];
    pushes_U[u] = state_U[u] == 2 ? sum * value_share : sum;
}

// Whether a sample has the row of field f in an earlier field already.
__device__ bool is_repeated(const int* local_F, int f) {
    for (int earlier = 0; earlier < f; ++earlier)
        if (local_F[earlier] == local_F[f]) return true;
    return false;
}

// ratio_n: how many pulls a push costs. part_n: what a part-holder saves, in pulls.
extern "C" __global__ void costs(const int* local_BF, const unsigned char* state_U, const unsigned long long* holders_UQ,
                                 const double* pushes_U, const double* row_cost_n, const double* ratio_n,
                                 const double* part_n, int samples, int fields, int n, int words, double* cost_Bn) {
    long long cell = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (cell >= (long long)samples * n) return;
    int i = cell / n, j = cell % n, rows = 0, held = 0, owned = 0, parts = 0;
    const int* local_F = local_BF + i * (long long)fields;
    double pushed = 0.0;
    for (int f = 0; f < fields; ++f) {
        if (is_repeated(local_F, f)) continue;
        long long u = local_F[f];
        rows += 1;
        pushed += pushes_U[u];
        int has = holders_UQ[u * words + (j >> 6)] >> (j & 63) & 1;
        if (state_U[u] == 2) {
            parts += has;
        } else {
            held += has;
            owned += state_U[u] == 1 ? has : 0;
        }
    }
    double saved = (double)held + (double)owned * ratio_n[j] + part_n[j] * (double)parts;
    cost_Bn[cell] = pushed + row_cost_n[j] * ((double)rows - saved);
}
