// Reports how many bytes llama.cpp allocates for placements, without loading the weights: `oracle MODEL.gguf [HOST:PORT,...]`.
//
// Each line of standard input is one placement. Its fields are the values of -ngl, -ts, -ot, -c, -ub, -dev, -np, -ctk and -ctv,
// separated by tabs. If the field of -dev is empty, llama.cpp uses all devices; if it is "none", it uses none of them. The
// answer to a placement is one line. For each buffer it has the name and the bytes of weights, of caches and of intermediate
// results, separated by tabs; a ';' ends each buffer. The answer begins with FAILED if there is an error.
#include "ggml-backend.h"
#include "llama-ext.h"
#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <list>
#include <sstream>
#include <string>
#include <vector>

static std::vector<std::string> parts_of(const std::string & text, char separator) {
    std::vector<std::string> parts;
    std::stringstream stream(text);
    std::string part;
    while (std::getline(stream, part, separator)) {
        parts.push_back(part);
    }
    return parts;
}

static ggml_type type_of(const std::string & name) {
    for (int number = 0; number < GGML_TYPE_COUNT; number++) {
        const char * known = ggml_type_name((ggml_type) number);
        if (known != nullptr && name == known) {
            return (ggml_type) number;
        }
    }
    return GGML_TYPE_F16;
}

static void answer(const char * path, const std::string & line) {
    std::vector<std::string> fields = parts_of(line, '\t');
    fields.resize(9);
    llama_model_params model_params = llama_model_default_params();
    model_params.no_alloc = true;
    model_params.load_mode = LLAMA_LOAD_MODE_NONE;
    model_params.n_gpu_layers = atoi(fields[0].c_str());
    std::vector<ggml_backend_dev_t> devices;
    for (const std::string & name : parts_of(fields[5] == "none" ? "" : fields[5], ',')) {
        ggml_backend_dev_t device = ggml_backend_dev_by_name(name.c_str());
        if (device == nullptr) {
            printf("FAILED: there is no device %s\n", name.c_str());
            return;
        }
        devices.push_back(device);
    }
    devices.push_back(nullptr);
    // Without a list, llama.cpp uses all devices; with an empty one, none.
    if (!fields[5].empty()) {
        model_params.devices = devices.data();
    }
    std::vector<float> shares(llama_max_devices(), 0);
    size_t count = 0;
    for (const std::string & share : parts_of(fields[1], ',')) {
        shares[count++] = (float) atof(share.c_str());
    }
    if (count > 0) {
        model_params.tensor_split = shares.data();
    }
    std::list<std::string> patterns;
    std::vector<llama_model_tensor_buft_override> overrides;
    for (const std::string & rule : parts_of(fields[2], ',')) {
        const size_t at = rule.rfind('=');
        patterns.push_back(rule.substr(0, at));
        ggml_backend_buffer_type_t buffer = nullptr;
        for (size_t number = 0; number < ggml_backend_dev_count(); number++) {
            ggml_backend_dev_t device = ggml_backend_dev_get(number);
            if (rule.substr(at + 1) == ggml_backend_buft_name(ggml_backend_dev_buffer_type(device))) {
                buffer = ggml_backend_dev_buffer_type(device);
            }
        }
        overrides.push_back({ patterns.back().c_str(), buffer });
    }
    overrides.push_back({ nullptr, nullptr });
    model_params.tensor_buft_overrides = overrides.data();
    llama_model * model = llama_model_load_from_file(path, model_params);
    if (model == nullptr) {
        puts("FAILED: the model cannot be loaded");
        return;
    }
    llama_context_params context_params = llama_context_default_params();
    context_params.n_ctx = (uint32_t) atoi(fields[3].c_str());
    context_params.n_ubatch = (uint32_t) atoi(fields[4].c_str());
    context_params.n_batch = context_params.n_ubatch > 2048 ? context_params.n_ubatch : 2048;
    context_params.n_seq_max = fields[6].empty() ? 1 : (uint32_t) atoi(fields[6].c_str());
    context_params.type_k = type_of(fields[7]);
    context_params.type_v = type_of(fields[8]);
    context_params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    context_params.swa_full = false;
    context_params.kv_unified = false;
    llama_context * context = llama_init_from_model(model, context_params);
    if (context == nullptr) {
        puts("FAILED: no context");
        llama_model_free(model);
        return;
    }
    for (const auto & [buffer, bytes] : llama_get_memory_breakdown(context)) {
        printf("%s\t%zu\t%zu\t%zu;", ggml_backend_buft_name(buffer), bytes.model, bytes.context, bytes.compute);
    }
    puts("");
    llama_free(context);
    llama_model_free(model);
}

int main(int argc, char ** argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: oracle MODEL.gguf [HOST:PORT,...]\n");
        return 2;
    }
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    ggml_backend_load_all();
    if (argc > 2 && argv[2][0] != '\0') {
        ggml_backend_reg_t registry = ggml_backend_reg_by_name("RPC");
        auto add = (ggml_backend_reg_t(*)(const char *)) ggml_backend_reg_get_proc_address(registry, "ggml_backend_rpc_add_server");
        for (const std::string & server : parts_of(argv[2], ',')) {
            ggml_backend_register(add(server.c_str()));
        }
    }
    llama_backend_init();
    std::string line;
    while (std::getline(std::cin, line)) {
        answer(argv[1], line);
        fflush(stdout);
    }
}
