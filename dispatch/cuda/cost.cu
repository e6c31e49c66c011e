// The cost of every sample on every worker, as dispatch/cost.py computes it, bit for bit.
// Legend: B samples, F keys a sample, U distinct rows, n workers, Q words of 64 workers.

extern "C" __global__ void row_costs(const unsigned char* state_U, const unsigned long long* holders_UQ,
                                     const double* row_cost_n, int rows, int n, int words, double* cost_Un) {
    long long cell = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (cell >= (long long)rows * n) return;
    int u = cell / n, j = cell % n;
    bool must_push = state_U[u] != 0;  // CLEAN is 0
    double pushes = 0.0;
    for (int q = 0; must_push && q < words; ++q)
        for (unsigned long long left = holders_UQ[u * (long long)words + q]; left; left &= left - 1)
            pushes += row_cost_n[q * 64 + __ffsll(left) - 1];
    bool held = holders_UQ[u * (long long)words + (j >> 6)] >> (j & 63) & 1;
    double own = held ? (must_push ? -row_cost_n[j] : 0.0) : row_cost_n[j];
    cost_Un[cell] = own + pushes;
}

extern "C" __global__ void sum_rows(const double* cost_Un, const int* local_BF, int samples, int fields, int n,
                                    double* cost_Bn) {
    long long cell = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (cell >= (long long)samples * n) return;
    int i = cell / n, j = cell % n;
    double sum = 0.0;
    for (int f = 0; f < fields; ++f) sum += cost_Un[local_BF[i * (long long)fields + f] * (long long)n + j];
    cost_Bn[cell] = sum;
}
