// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A whole run of the trainer as its flags describe it, and what it has written.
#pragma once

#include <stdlib.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "train_moe/command_line.hpp"
#include "train_moe/session.hpp"

namespace sessions_bench {

namespace files = std::filesystem;

class folder {
 public:
  folder() {
    std::string pattern = (files::temp_directory_path() / "belay-sessions-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    std::ofstream(file("model.json"))
        << R"({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 256,
      "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
      "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 16})";
    std::ofstream text(file("text"));
    for (int line = 0; line < 200; ++line) text << "line " << line * line % 97 << " of a text that repeats itself\n";
  }
  ~folder() { files::remove_all(path_); }
  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  files::path path_;
};

inline std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

struct outcome {
  int code = 0;
  std::vector<nlohmann::json> steps, phases;  // of training, and of what stands between
  nlohmann::json summary;
};

// Runs the trainer with these words; returns its exit code.
inline int run_with(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  int code = 0;
  const auto line = train_moe::parse(static_cast<int>(pointers.size()), pointers.data(), code);
  return line ? train_moe::run_session(*line, pointers.data()) : code;
}

// The same with these flags, after those that every run here has.
inline outcome run(const folder& in, std::vector<std::string> flags) {
  std::vector<std::string> all{"train_moe",          "--sequence", "16",     "--micro-batches", "4",
                               "--micro-batch-size", "4",          "--data", in.file("text"),   "--json",
                               in.file("lines")};
  all.insert(all.end(), flags.begin(), flags.end());
  files::remove(in.file("lines"));
  outcome out;
  out.code = run_with(std::move(all));
  std::ifstream lines(in.file("lines"));
  for (std::string text; std::getline(lines, text);) {
    auto object = nlohmann::json::parse(text);
    if (object.contains("summary"))
      out.summary = object;
    else
      (object.contains("step") ? out.steps : out.phases).push_back(object);
  }
  return out;
}

// The bytes that a refusal says `flag` would need, after `words`; 0 where it does not name it so.
inline std::size_t advised(const std::string& refusal, const std::string& flag, const std::string& words) {
  const std::size_t line = refusal.find("\n  - " + flag + ": ");
  if (line == std::string::npos) return 0;
  const std::string text = refusal.substr(line + 1, refusal.find('\n', line + 1) - line - 1);
  const std::size_t number = text.find("; " + words);
  return number == std::string::npos ? 0 : std::stoull(text.substr(number + 2 + words.size()));
}

}  // namespace sessions_bench
