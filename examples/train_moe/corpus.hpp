// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The text to train on, as bytes: a file, or this repository's headers and documentation. The bytes of a sequence
// depend on seed, step, micro-batch and sequence alone. So every mesh trains on the same data, and nothing is stored or
// sent.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "train_moe/batch.hpp"

namespace train_moe {

/// The numbers of a sequence in the whole run, independently of ranks.
struct sequence_index {
  std::uint64_t step = 0;
  std::uint64_t micro_batch = 0;
  std::uint64_t sequence = 0;
};

/// All of a file. An empty or unreadable one is a belay::input_error that names it.
[[nodiscard]] inline std::string read_text(const std::string& path, std::uint64_t most = ~std::uint64_t{0}) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) throw belay::input_error(path + ": is a folder, a file is needed");
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    throw belay::input_error(path + ": is a pipe or a device, a file is needed");
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) throw belay::input_error(path + ": cannot be opened: " + std::strerror(errno));
  std::string text;
  std::vector<char> part(1U << 16U);
  while (in && text.size() < most) {
    const std::uint64_t wanted = std::min<std::uint64_t>(part.size(), most - text.size());
    in.read(part.data(), static_cast<std::streamsize>(wanted));
    text.append(part.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (in.bad()) throw belay::input_error(path + ": cannot be read: " + std::strerror(errno));
  if (text.empty()) throw belay::input_error(path + ": is empty");
  return text;
}

class corpus {
 public:
  /// No text: of a run that is planned and never run.
  [[nodiscard]] static corpus none() { return corpus("no text", ""); }

  /// The bytes of `path`.
  [[nodiscard]] static corpus from_file(const std::string& path) { return corpus(path, read_text(path)); }

  /// The bytes of `path`, or where it is empty of the repository at `root`.
  [[nodiscard]] static corpus from(const std::string& path, const std::string& root) {
    return path.empty() ? from_repository(root) : from_file(path);
  }

  /// README.md, docs/ and include/ of the repository at `root`, in the order of names, a newline after each file.
  [[nodiscard]] static corpus from_repository(const std::string& root) {
    namespace files = std::filesystem;
    std::vector<std::string> names;
    std::error_code error;
    for (const char* folder : {"docs", "include"}) {
      files::recursive_directory_iterator entries(files::path(root) / folder, error);
      if (error) continue;
      for (const files::directory_entry& entry : entries) {
        if (entry.is_regular_file()) names.push_back(entry.path().lexically_relative(root).generic_string());
      }
    }
    if (files::is_regular_file(files::path(root) / "README.md", error)) names.emplace_back("README.md");
    std::sort(names.begin(), names.end());
    std::string text;
    for (const std::string& name : names) {
      const std::string path = root + "/" + name;
      if (files::file_size(path, error) == 0) continue;
      text += read_text(path);
      text += '\n';
    }
    if (text.empty()) {
      throw belay::input_error(root +
                               ": holds no headers and no documentation to train on; name a text with --data FILE");
    }
    return corpus(root, std::move(text));
  }

  [[nodiscard]] std::size_t size() const noexcept { return text_.size(); }
  [[nodiscard]] std::span<const char> bytes() const noexcept { return text_; }

  /// A text shorter than a sequence of `length` bytes is a belay::input_error that names it.
  void require(std::size_t length) const {
    if (text_.size() >= length) return;
    throw belay::input_error(name_ + ": has " + std::to_string(text_.size()) + " bytes, a sequence takes " +
                             std::to_string(length));
  }

  /// Takes the last tenth of the text away, at most `most` bytes, and returns it: training does not read it. A text
  /// that is too short for two bytes of it is a belay::input_error.
  [[nodiscard]] std::string hold_out(std::size_t most) {
    const std::size_t bytes = std::min(most, text_.size() / 10);
    if (bytes < 2)
      throw belay::input_error(name_ + ": has " + std::to_string(text_.size()) +
                               " bytes, and --phases evaluates its last tenth: at least 20, or --eval FILE");
    std::string out = text_.substr(text_.size() - bytes);
    text_.resize(text_.size() - bytes);
    return out;
  }

  /// Fills `tokens` with the bytes of one sequence. The text must hold tokens.size() bytes (see require).
  void sequence(std::uint64_t seed, sequence_index which, std::span<std::int32_t> tokens) const {
    require(tokens.size());
    const std::uint64_t places = text_.size() - tokens.size() + 1;
    const std::uint64_t hash = mix(mix(mix(mix(seed) + which.step) + which.micro_batch) + which.sequence);
    const auto begin = static_cast<std::size_t>(hash % places);  // as good as uniform: places are far below 2^64
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<unsigned char>(text_[begin + i]);
  }

  // splitmix64: a bijection whose output bits all depend on all input bits.
  [[nodiscard]] static constexpr std::uint64_t mix(std::uint64_t x) noexcept {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ x >> 30U) * 0xbf58476d1ce4e5b9U;
    x = (x ^ x >> 27U) * 0x94d049bb133111ebU;
    return x ^ x >> 31U;
  }

 private:
  corpus(std::string name, std::string text) : name_(std::move(name)), text_(std::move(text)) {}

  std::string name_;
  std::string text_;
};

/// The tokens of a text.
[[nodiscard]] inline std::vector<std::int32_t> tokens_of(std::string_view text) {
  std::vector<std::int32_t> tokens;
  for (char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

/// Bytes of a text that an evaluation reads at most.
inline constexpr std::size_t most_evaluated_bytes = 16'384;

/// The text of --eval: the first bytes of a file. A single byte is a belay::input_error: it predicts nothing.
[[nodiscard]] inline std::vector<std::int32_t> evaluation_text(const std::string& path) {
  std::vector<std::int32_t> tokens = tokens_of(read_text(path, most_evaluated_bytes));
  if (tokens.size() < 2) throw belay::input_error(path + ": has one byte, there is nothing to predict");
  return tokens;
}

/// A text of `size` tokens in windows of `length`. The last may be shorter; one of a single token is dropped.
struct text_windows {
  std::size_t size = 0;
  std::size_t length = 0;

  /// Windows of the full length.
  [[nodiscard]] constexpr std::size_t full() const noexcept { return size / length; }
  /// Tokens of the shorter window at the end; 0 where there is none.
  [[nodiscard]] constexpr std::size_t rest() const noexcept { return size % length >= 2 ? size % length : 0; }
  /// Tokens that are predicted in all windows together: the divisor of the loss.
  [[nodiscard]] constexpr std::size_t targets() const noexcept {
    return full() * (length - 1) + (rest() > 0 ? rest() - 1 : 0);
  }
};

/// The sequences of one micro-batch of seed 1, `length` bytes each, one after the other, and what follows each byte.
inline void read_micro_batch(const corpus& text, std::size_t step, std::size_t micro_batch, std::size_t length,
                             std::span<std::int32_t> tokens, std::span<std::int32_t> targets) {
  for (std::size_t s = 0; (s + 1) * length <= tokens.size(); ++s) {
    const auto sequence = tokens.subspan(s * length, length);
    text.sequence(1, {step, micro_batch, s}, sequence);
    next_token_targets(sequence, targets.subspan(s * length, length));
  }
}

}  // namespace train_moe
