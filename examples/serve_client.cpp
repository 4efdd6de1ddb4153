// Packs two buffers with `stowplan serve`, from a program without Python in it (guide: docs/guide/serve.md).
//
//     c++ -std=c++11 examples/serve_client.cpp -o serve_client && ./serve_client stowplan serve

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

class Server {
  public:
    explicit Server(char *const command[]) {
        int to[2], from[2];
        if (pipe(to) || pipe(from) || (child_ = fork()) < 0) throw std::runtime_error("cannot start the server");
        if (child_ == 0) {
            dup2(to[0], 0), dup2(from[1], 1);
            close(to[0]), close(to[1]), close(from[0]), close(from[1]);
            execvp(command[0], command);
            _exit(127);
        }
        close(to[0]), close(from[1]);
        to_ = fdopen(to[1], "w"), from_ = fdopen(from[0], "r");
    }
    ~Server() {  // At the end of its input, the server ends.
        fclose(to_), fclose(from_), waitpid(child_, nullptr, 0);
    }
    // Sends a request and returns its answer. Requests are sent one after the other here, so that the next line is the answer.
    std::string ask(const std::string &request) {
        fputs((request + "\n").c_str(), to_), fflush(to_);
        char *line = nullptr;
        size_t space = 0;
        if (getline(&line, &space, from_) < 0) throw std::runtime_error("the server has ended");
        std::string answer(line);
        free(line);
        if (answer.find("{\"type\":\"error\"") == 0) throw std::runtime_error(answer);
        return answer;
    }

  private:
    pid_t child_;
    FILE *to_, *from_;
};

struct Buffer { const char *id; long lower, upper, size; };

int main(int argc, char *argv[]) try {
    if (argc < 2) throw std::runtime_error("expected the command of the server, such as: stowplan serve");
    signal(SIGPIPE, SIG_IGN);  // If the server has ended, ask() throws.
    Server server(argv + 1);
    const std::vector<Buffer> buffers = {{"a", 0, 3, 64}, {"b", 2, 5, 32}};
    std::string problem = "{\"format\":\"stowplan.packing.problem\",\"version\":1,\"buffers\":[";
    for (const Buffer &buffer : buffers)
        problem += (&buffer == &buffers[0] ? "{\"id\":\"" : ",{\"id\":\"") + std::string(buffer.id) + "\",\"lower\":" +
                   std::to_string(buffer.lower) + ",\"upper\":" + std::to_string(buffer.upper) + ",\"size\":" +
                   std::to_string(buffer.size) + "}";
    const std::string answer = server.ask("{\"id\":1,\"type\":\"solve\",\"deadline_ms\":1000,\"fallback\":true,\"problem\":" + problem + "]}}");
    // A compiler has a reader of JSON. Here, the first list of offsets in the answer is that of the plan.
    const size_t at = answer.find("\"offsets\":[");
    if (at == std::string::npos) throw std::runtime_error("no plan: " + answer);
    const char *text = answer.c_str() + at + 10;
    for (const Buffer &buffer : buffers) printf("%s at byte %ld\n", buffer.id, strtol(text + 1, const_cast<char **>(&text), 10));
} catch (const std::exception &error) {
    fprintf(stderr, "serve_client: %s\n", error.what());
    return 1;
}
