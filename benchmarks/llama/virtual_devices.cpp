// Virtual devices: a graph takes as long as its bytes take at STOW_VBW and STOW_VKV (GB/s), or its operations at STOW_VFLOPS (GFLOP/s).
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
static double stow_number(const char * name, double otherwise) {
    const char * text = getenv(name);
    return text ? atof(text) : otherwise;
}
static void stow_wait(struct ggml_cgraph * cgraph) {
    static const double bw = stow_number("STOW_VBW", 0) * 1e9, kv = stow_number("STOW_VKV", 0) * 1e9, flops = stow_number("STOW_VFLOPS", 1e9) * 1e9, lat = stow_number("STOW_VLAT", 0) * 1e-6;
    if (bw <= 0) return;
    double seconds = lat;
    for (int i = 0; i < cgraph->n_nodes; i++) {
        struct ggml_tensor * node = cgraph->nodes[i];
        if (node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID) {
            double bytes = (double) ggml_nbytes(node->src[0]);
            double work = 2.0 * (double) node->src[0]->ne[0] * (double) ggml_nelements(node);
            if (node->op == GGML_OP_MUL_MAT_ID) {
                const struct ggml_tensor * ids = node->src[2];
                const double experts = (double) node->src[0]->ne[2];
                const double drawn = (double) ids->ne[1];
                double unread = 1;
                for (int64_t k = 0; k < (int64_t) drawn; k++) unread *= 1 - (double) ids->ne[0] / experts;
                bytes *= 1 - unread;
            }
            const double a = bytes / bw, b = work / flops;
            seconds += a > b ? a : b;
        } else if (node->op == GGML_OP_FLASH_ATTN_EXT) {
            const double bytes = (double) ggml_nbytes(node->src[1]) + (double) ggml_nbytes(node->src[2]);
            const double work = 4.0 * (double) node->src[0]->ne[0] * (double) node->src[0]->ne[1] * (double) node->src[0]->ne[2] * (double) node->src[1]->ne[1];
            const double a = bytes / (kv > 0 ? kv : bw), b = work / flops;
            seconds += a > b ? a : b;
        }
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}
