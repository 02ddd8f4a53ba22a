// A conversation in C++: chat MODEL.nb, then one question per line. Ctrl-C ends an answer, Ctrl-D the program.
#include <edge_kit.h>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Message {
  std::string role, content;
};

void check(ek_status status) {
  if (status != EK_OK) throw std::runtime_error(ek_last_error());
}

class Chat {
 public:
  explicit Chat(const char* path) {
    ek_model* model = nullptr;
    check(ek_model_open(path, nullptr, &model));
    model_.reset(model);
    ek_session* session = nullptr;
    check(ek_session_create(model, &session));
    session_.reset(session);
  }

  // Shows the answer as it comes. What the session holds of earlier messages is not computed again.
  void ask(const std::string& question) {
    history_.push_back({"user", question});
    std::vector<ek_message> messages;
    for (const Message& message : history_) messages.push_back({message.role.c_str(), message.content.c_str()});
    std::string answer;
    const auto show = [](void* text, const char* piece, size_t n_bytes) {
      static_cast<std::string*>(text)->append(piece, n_bytes);
      std::cout << piece << std::flush;
      return 1;
    };
    ek_generation result = {};
    result.struct_size = sizeof result;
    check(ek_chat(session_.get(), messages.data(), messages.size(), nullptr, show, &answer, &result));
    history_.push_back({"assistant", answer});
    std::fprintf(stderr, "\n[%lld of %lld prompt tokens were known, %lld new ones]\n",
                 static_cast<long long>(result.n_cached), static_cast<long long>(result.n_prompt),
                 static_cast<long long>(result.n_generated));
  }

  void cancel() { ek_session_cancel(session_.get()); }

 private:
  struct Close {
    void operator()(ek_model* model) const { ek_model_close(model); }
    void operator()(ek_session* session) const { ek_session_free(session); }
  };
  std::unique_ptr<ek_model, Close> model_;
  std::unique_ptr<ek_session, Close> session_;  // freed before its model
  std::vector<Message> history_;
};

Chat* running = nullptr;

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: chat MODEL.nb < QUESTIONS\n"), 2;
  try {
    Chat chat(argv[1]);
    running = &chat;
    std::signal(SIGINT, [](int) { running->cancel(); });
    for (std::string question; std::getline(std::cin, question);) chat.ask(question);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "chat: %s\n", error.what()), 1;
  }
  return 0;
}
