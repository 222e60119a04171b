// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/corpus.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>

namespace {

struct folder {
  std::string path = [] {
    char name[] = "/tmp/belay_corpus_XXXXXX";
    return std::string(::mkdtemp(name));
  }();
  ~folder() { std::filesystem::remove_all(path); }
  std::string put(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path + "/" + name).parent_path());
    std::ofstream(path + "/" + name, std::ios::binary) << text;
    return path + "/" + name;
  }
};

std::vector<std::int32_t> tokens_of(const train_moe::corpus& text, std::uint64_t seed, train_moe::sequence_index which,
                                    std::size_t length) {
  std::vector<std::int32_t> tokens(length, -1);
  text.sequence(seed, which, tokens);
  return tokens;
}

}  // namespace

TEST_CASE("a sequence depends on seed, step, micro-batch and sequence, and on nothing else") {
  const folder dir;
  std::string text;
  for (int i = 0; i < 30000; ++i) text += static_cast<char>(i * i % 251 ^ i / 251);
  const auto corpus = train_moe::corpus::from_file(dir.put("text", text));
  std::set<std::vector<std::int32_t>> different;
  for (std::uint64_t seed : {0U, 1U}) {
    for (std::uint64_t step : {0U, 1U}) {
      for (std::uint64_t micro_batch : {0U, 1U}) {
        for (std::uint64_t sequence : {0U, 1U}) {
          const auto once = tokens_of(corpus, seed, {step, micro_batch, sequence}, 64);
          CHECK(once == tokens_of(corpus, seed, {step, micro_batch, sequence}, 64));
          different.insert(once);
        }
      }
    }
  }
  CHECK(different.size() == 16);
}

TEST_CASE("sequences are pieces of the text and reach both of its ends") {
  const folder dir;
  const auto corpus = train_moe::corpus::from_file(dir.put("text", "\xff\x01\x02\x03\x04\x05"));
  std::set<std::int32_t> first;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const auto tokens = tokens_of(corpus, 1, {i, 0, 0}, 3);
    first.insert(tokens[0]);
    CHECK(tokens[1] == (tokens[0] + 1) % 256 + (tokens[0] == 255 ? 1 : 0));
    CHECK(tokens[2] == tokens[1] + 1);
  }
  CHECK(first == std::set<std::int32_t>{255, 1, 2, 3});
  CHECK(tokens_of(corpus, 1, {0, 0, 0}, 6)[5] == 5);
  CHECK_NOTHROW(corpus.require(6));
  CHECK_THROWS_WITH_AS(corpus.require(7), doctest::Contains("text: has 6 bytes, a sequence takes 7"),
                       belay::input_error);
}

TEST_CASE("empty, missing and unreadable texts are refused by name") {
  const folder dir;
  CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::corpus::from_file(dir.put("nothing", ""))),
                       doctest::Contains("nothing: is empty"), belay::input_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::corpus::from_file(dir.path + "/absent")),
                       doctest::Contains("absent: cannot be opened: No such file"), belay::input_error);
  const std::string pipe = dir.path + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::corpus::from_file(pipe)), doctest::Contains("is a pipe"),
                       belay::input_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::corpus::from_file(dir.path)), doctest::Contains("is a folder"),
                       belay::input_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::corpus::from_repository(dir.path)),
                       doctest::Contains("--data FILE"), belay::input_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::corpus::from_repository("/nowhere")),
                       doctest::Contains("--data FILE"), belay::input_error);
}

TEST_CASE("what is held out is the end of the text, and training does not read it") {
  const folder dir;
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>('a' + i / 10);
  auto corpus = train_moe::corpus::from_file(dir.put("text", text));
  CHECK(corpus.hold_out(1000) == std::string(10, 'j'));
  CHECK(std::string(corpus.bytes().begin(), corpus.bytes().end()) == text.substr(0, 90));
  CHECK(corpus.hold_out(4) == std::string(4, 'i'));
  auto tiny = train_moe::corpus::from_file(dir.put("tiny", "nineteen characters"));
  CHECK_THROWS_WITH_AS(static_cast<void>(tiny.hold_out(1000)), doctest::Contains("has 19 bytes, and --phases"),
                       belay::input_error);
  CHECK(tiny.size() == 19);
}

TEST_CASE("the repository's text is its headers and documentation in the order of their names") {
  const folder dir;
  dir.put("include/b.hpp", "B");
  dir.put("include/a/z.hpp", "AZ");
  dir.put("docs/one.md", "D");
  dir.put("docs/empty.md", "");
  dir.put("README.md", "R");
  dir.put("tests/t.cpp", "T");
  const auto corpus = train_moe::corpus::from_repository(dir.path);
  CHECK(std::string(corpus.bytes().begin(), corpus.bytes().end()) == "R\nD\nAZ\nB\n");
#ifdef BELAY_SOURCE_DIR
  CHECK(train_moe::corpus::from_repository(BELAY_SOURCE_DIR).size() > 100'000);
#endif
}

TEST_CASE("an evaluation looks at the first 16,384 bytes of a file") {
  const folder dir;
  const auto read = [&](std::size_t bytes) {
    std::string text;
    for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(i % 256);
    return train_moe::evaluation_text(dir.put("eval", text));
  };
  for (const std::size_t bytes : {2U, 255U, 16'383U, 16'384U, 20'000U}) {
    const std::vector<std::int32_t> tokens = read(bytes);
    REQUIRE(tokens.size() == std::min<std::size_t>(bytes, 16'384));
    bool same = true;
    for (std::size_t i = 0; i < tokens.size(); ++i) same = same && tokens[i] == static_cast<std::int32_t>(i % 256);
    CHECK(same);
  }
  CHECK_THROWS_AS(static_cast<void>(read(1)), belay::input_error);
  CHECK_THROWS_AS(static_cast<void>(read(0)), belay::input_error);
}

TEST_CASE("evaluation windows cover a text once; a window of one token is dropped") {
  const auto check = [](train_moe::text_windows cut, std::size_t full, std::size_t rest, std::size_t targets) {
    CAPTURE(cut.size);
    CHECK(cut.full() == full);
    CHECK(cut.rest() == rest);
    CHECK(cut.targets() == targets);
  };
  check({16'384, 128}, 128, 0, 16'384 - 128);
  check({16'383, 128}, 127, 127, 16'383 - 128);
  check({130, 128}, 1, 2, 128);
  check({129, 128}, 1, 0, 127);  // the last token has nothing to predict
  check({2, 128}, 0, 2, 1);
  check({16'384, 100}, 163, 84, 16'384 - 164);
  check({16'384, 3}, 5461, 0, 2 * 5461);
}
