// The cost of every sample on every worker, as dispatch/assign/cost.py computes it, bit for bit.
// Legend: B samples, F keys a sample, U distinct rows, n workers, Q words of 64 workers.

// What it costs if every holder of a row pushes it.
extern "C" __global__ void pushes(const unsigned char* state_U, const unsigned long long* holders_UQ,
                                  const double* row_cost_n, int rows, int words, double* pushes_U) {
    int u = blockIdx.x * blockDim.x + threadIdx.x;
    if (u >= rows) return;
    double sum = 0.0;
    for (int q = 0; state_U[u] != 0 && q < words; ++q)  // CLEAN is 0
        for (unsigned long long left = holders_UQ[u * (long long)words + q]; left; left &= left - 1)
            sum += row_cost_n[q * 64 + __ffsll(left) - 1];
    pushes_U[u] = sum;
}

extern "C" __global__ void costs(const int* local_BF, const unsigned char* state_U, const unsigned long long* holders_UQ,
                                 const double* pushes_U, const double* row_cost_n, int samples, int fields, int n,
                                 int words, double* cost_Bn) {
    long long cell = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (cell >= (long long)samples * n) return;
    int i = cell / n, j = cell % n, held = 0;
    double pushed = 0.0;
    for (int f = 0; f < fields; ++f) {
        long long u = local_BF[i * (long long)fields + f];
        pushed += pushes_U[u];
        int has = holders_UQ[u * words + (j >> 6)] >> (j & 63) & 1;
        held += state_U[u] == 0 ? has : 2 * has;
    }
    cost_Bn[cell] = pushed + row_cost_n[j] * (double)(fields - held);
}
