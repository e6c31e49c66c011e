// The classical Hungarian method on a square matrix, one round at a time; dispatch/hungarian_cuda.py calls in a loop.
// Legend: s rows and columns. A covered row or column is one that a tree of zeros, grown from unmatched rows, reached.

#define INF __longlong_as_double(0x7ff0000000000000LL)

// A new phase: trees start at the unmatched rows. state = {free columns reached, rows that are new to the trees}
extern "C" __global__ void begin(int s, const int* column_of, int* in_row, int* in_column, double* slack, int* from,
                                 int* claim, int* fresh, int* state) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    if (x >= s) return;
    in_column[x] = 0, slack[x] = INF, from[x] = s, claim[x] = s;
    in_row[x] = column_of[x] < 0;
    if (in_row[x]) fresh[atomicAdd(state + 1, 1)] = x;
}

// Each column's least reduced cost over the rows of the trees, brought up to date with the new rows.
extern "C" __global__ void extend(int s, const double* cost, const double* u, const double* v, const int* in_column,
                                  const int* fresh, const int* state, double* slack, int* from) {
    int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= s || in_column[j]) return;
    double least = slack[j];
    int row = from[j];
    for (int q = 0; q < state[1]; ++q) {
        int i = fresh[q];
        double reduced = cost[i * (long long)s + j] - u[i] - v[j];
        if (reduced < least || (reduced == least && i < row)) least = reduced, row = i;
    }
    slack[j] = least, from[j] = row;
}

// One block: shifts duals until a column outside the trees has a zero, and takes all such columns in.
extern "C" __global__ void cover(int s, const int* row_of, double* u, double* v, int* in_row, int* in_column,
                                 double* slack, int* fresh, int* state) {
    __shared__ double least[32];
    int t = threadIdx.x;
    double delta = INF;
    for (int j = t; j < s; j += 1024)
        if (!in_column[j]) delta = fmin(delta, slack[j]);
    for (int step = 16; step; step >>= 1) delta = fmin(delta, __shfl_xor_sync(~0u, delta, step));
    if (t % 32 == 0) least[t / 32] = delta;
    if (t == 0) state[0] = state[1] = 0;
    __syncthreads();
    for (int w = 0; w < 32; ++w) delta = fmin(delta, least[w]);
    for (int x = t; x < s; x += 1024) {
        if (in_row[x]) u[x] += delta;
        if (in_column[x]) v[x] -= delta;
    }
    __syncthreads();
    for (int j = t; j < s; j += 1024) {
        if (in_column[j]) continue;
        slack[j] -= delta;
        if (slack[j] > 0.0) continue;
        in_column[j] = 1;
        if (row_of[j] < 0) atomicAdd(state, 1);
        else fresh[atomicAdd(state + 1, 1)] = row_of[j], in_row[row_of[j]] = 1;
    }
}

// One block: each tree that reached a free column matches along the path to its lowest one.
extern "C" __global__ void flip(int s, int* row_of, int* column_of, const int* in_column, const int* from, int* claim,
                                int* roots) {
    for (int j = threadIdx.x; j < s; j += 1024) {
        roots[j] = -1;
        if (!in_column[j] || row_of[j] >= 0) continue;
        int i = from[j];
        while (column_of[i] >= 0) i = from[column_of[i]];
        roots[j] = i;
        atomicMin(claim + i, j);
    }
    __syncthreads();
    for (int end = threadIdx.x; end < s; end += 1024) {
        if (roots[end] < 0 || claim[roots[end]] != end) continue;
        for (int j = end; j >= 0;) {
            int i = from[j], before = column_of[i];
            row_of[j] = i, column_of[i] = j;
            j = before;
        }
    }
}
