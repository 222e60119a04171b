// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Exports that are cut: by a signal at every system call, by a limit, by the process that started the ranks. What was
// there before or the new export is whole, and what is left beside it the next export removes.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/ptrace.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "belay/backend/host/processes.hpp"
#include "train_moe/hugging_face.cpp"
#include "train_moe/model_config.cpp"
#include "unit/backend/forked.hpp"
#include "whole_folder/folder_guard.hpp"

#ifdef BELAY_RUN

namespace {

using train_moe::model_config;

model_config little() {
  model_config config;
  config.hidden_size = config.intermediate_size = 2;
  config.num_hidden_layers = config.num_attention_heads = config.num_key_value_heads = 1;
  config.head_dim = config.num_local_experts = 2;
  return config;
}

// An export of one process.
struct model_export {
  explicit model_export(const std::string& target)
      : files(train_moe::tensors_of(little()), belay::safetensors::largest_file),
        folder(target, little(), 16, belay::dtype::f32, files),
        tensors(folder.path(), files) {}
  void fill(float value) {
    for (const auto& each : train_moe::tensors_of(little())) {
      std::uint64_t count = 1;
      for (const std::uint64_t extent : each.shape) count *= extent;
      tensors.write<float>(each.name, 0, std::vector<float>(count, value));
    }
  }
  void commit() {
    tensors.commit();
    folder.commit();
  }

  belay::safetensors::file_division files;
  train_moe::model_export folder;
  belay::safetensors::writer tensors;
};

void export_to(const std::string& target, float value) {
  model_export out(target);
  out.fill(value);
  out.commit();
}

// Of a whole export, else -1.
float value_in(const std::string& target) {
  try {
    const belay::safetensors::folder in(train_moe::model_import(target, 16).folder());
    float value = 0;
    in.read<float>("model.norm.weight", 1, std::span(&value, 1));
    return value;
  } catch (const belay::error&) {
    return -1;
  }
}

// Runs `body` in a child until it enters its `call`-th system call, and sends the signal there: how it ended (0, or
// 1000 + signal), -1 where it made fewer calls, -2 where nobody may be traced.
template <class Body>
int cut(Body body, int call, int number) {
  const pid_t child = forked([&] {
    ::alarm(0);
    for (const int each : {SIGHUP, SIGQUIT}) ::signal(each, SIG_DFL);
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) return 97;
    ::raise(SIGSTOP);
    body();
    return 0;
  });
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (!WIFSTOPPED(status)) return -2;
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_EXITKILL);
  for (int stops = 0; stops < 2 * call - 1; ++stops) {  // it returns from each but the last
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    REQUIRE(::waitpid(child, &status, 0) == child);
    if (WIFEXITED(status)) return -1;
  }
  ::kill(child, number);
  if (number != SIGKILL) ::ptrace(PTRACE_DETACH, child, nullptr, nullptr);
  return reaped(child);
}

// Where an export goes; in memory where that is a file system, because every export waits for the medium.
class export_folder {
 public:
  export_folder() {
    const bool memory = ::access("/dev/shm", W_OK) == 0;
    std::string pattern = std::string(memory ? "/dev/shm" : "/tmp") + "/belay-cut-XXXXXX";
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
    target = path_ + "/out";
  }
  export_folder(const export_folder&) = delete;
  export_folder& operator=(const export_folder&) = delete;
  ~export_folder() { std::filesystem::remove_all(path_); }

  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int entries() const { return entries_of(path_); }
  [[nodiscard]] int temporaries() const { return entries_of(path_, "out.tmp-"); }

  std::string target;

 private:
  std::string path_;
};

// What holds after an export of 2 over one of 1 (or none, -1) was cut, and after the next one.
void check_cut(const export_folder& here, float before, bool may_leave) {
  const float found = value_in(here.target);
  CHECK((found == 2 || found == before));
  CHECK(here.temporaries() <= (may_leave ? 1 : 0));
  CHECK(here.entries() == here.temporaries() + (found < 0 ? 0 : 1));
  export_to(here.target, 3);
  CHECK(value_in(here.target) == 3);
  CHECK(here.entries() == 1);
}

void cut_everywhere(int number, bool may_leave, int step) {
  for (const float before : {-1.0F, 1.0F}) {
    int left = 0;
    for (int call = 1; call < 10'000; call += step) {
      const export_folder here;
      if (before > 0) export_to(here.target, before);
      const int ended = cut([&] { export_to(here.target, 2); }, call, number);
      if (ended == -2) {
        MESSAGE("nobody may be traced here");
        return;
      }
      if (ended == -1) {
        CHECK(call > 40);  // it was cut in the middle, many times
        break;
      }
      CAPTURE(call);
      // Where it was about to exit anyway, a signal may be too late.
      CHECK((ended == 1000 + number || (ended == 0 && number != SIGKILL && value_in(here.target) == 2)));
      left += here.temporaries();
      check_cut(here, before, may_leave);
    }
    CHECK((left > 0) == may_leave);
  }
}

std::string contents(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string this_program() { return std::filesystem::read_symlink("/proc/self/exe"); }

// belay-run with two ranks, of which rank 0 is in the middle of an export when this is made.
class exporting_ranks {
 public:
  explicit exporting_ranks(const export_folder& here) {
    const std::string ready = here / "ready";
    REQUIRE(::mkfifo(ready.c_str(), 0600) == 0);
    pid_ = forked([&] {
      ::alarm(0);
      ::setenv("BELAY_TEST_EXPORT", here.target.c_str(), 1);
      ::setenv("BELAY_TEST_READY", ready.c_str(), 1);
      const std::string program = this_program();
      ::execl(BELAY_RUN, BELAY_RUN, "-n", "2", "--grace", "0.1", program.c_str(), "--no-skip",
              "--test-case=as an exporting rank", nullptr);
      return 98;
    });
    std::ifstream(ready) >> rank_;  // waits for it
    std::filesystem::remove(ready);
    REQUIRE(here.temporaries() == 1);
  }
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] pid_t rank() const noexcept { return rank_; }

 private:
  pid_t pid_ = -1;
  pid_t rank_ = -1;
};

// Until nobody holds the folder any more.
void wait_for_owner(const export_folder& here) {
  for (const auto& entry : std::filesystem::directory_iterator(here.path())) {
    const belay::unique_fd folder(::open(entry.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder) CHECK(::flock(folder.get(), LOCK_EX) == 0);  // or it has removed it
  }
}

}  // namespace

TEST_CASE(
    "killed at any system call, an export leaves the old one or the new one whole, and one folder that is swept") {
  cut_everywhere(SIGKILL, true, 1);
}

TEST_CASE("signals that can be caught leave nothing, wherever they come") {
  cut_everywhere(SIGTERM, false, 1);
  cut_everywhere(SIGINT, false, 5);
  cut_everywhere(SIGHUP, false, 7);
}

TEST_CASE("a file beyond the limit is an error with file and bytes, and nothing is left") {
  const export_folder here;
  export_to(here.target, 1);
  const std::string said = here.path() + "-said";
  const pid_t child = forked([&] {
    const rlimit most{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &most);
    try {
      export_to(here.target, 2);
    } catch (const belay::file_error& error) {
      std::ofstream(said) << error.what();
      struct sigaction after = {};
      ::sigaction(SIGXFSZ, nullptr, &after);
      return after.sa_handler == SIG_DFL && here.temporaries() == 0 ? 7 : 8;
    }
    return 9;
  });
  CHECK(reaped(child) == 7);
  const std::string text = contents(said);
  CAPTURE(text);
  CHECK(text.find("/config.json.tmp") == std::string::npos);
  CHECK(text.find("model.safetensors.tmp-") != std::string::npos);
  CHECK(text.find("bytes: File too large") != std::string::npos);
  check_cut(here, 1, false);
  std::filesystem::remove(said);
}

TEST_CASE("signals do afterwards what they did before, and those that came meanwhile are not lost") {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    const export_folder here;
    const pid_t child = forked([&] {
      ::signal(SIGHUP, number == SIGHUP ? SIG_DFL : SIG_IGN);
      ::signal(SIGQUIT, SIG_DFL);
      {
        model_export out(here.target);
        if (number != SIGHUP) ::raise(SIGHUP);  // ignored before, as under nohup: ignored
        if (here.temporaries() != 1) return 8;
      }
      if (here.temporaries() != 0) return 9;
      ::raise(number);
      return 0;
    });
    CHECK(reaped(child) == 1000 + number);
  }
}

TEST_CASE("only what nobody holds and nobody else may have made is swept") {
  CHECK_FALSE(
      whole_folder::each_entry(-1, [](const char*) { return true; }));  // what cannot be listed may hold anything
  const export_folder here;
  const auto kept = [&](const std::string& name, const char* file) {
    std::filesystem::create_directory(here / name);
    if (*file != '\0') std::ofstream(here / (name + "/" + file)) << "mine";
  };
  kept("out.tmp-backup", "model.safetensors");      // somebody's copy
  kept("out.tmp-belay-abc12", "config.json");       // too short
  kept("out.tmp-belay-abc1234", "config.json");     // too long
  kept("out.tmp-belay-abc.23", "config.json");      // not of mkdtemp
  kept("other.tmp-belay-abc123", "config.json");    // another place's
  kept("out.tmp-belay-notes1", "notes.txt");        // not a file of ours
  kept("out.tmp-belay-abc123-old", "config.json");  // all that there is of the old one
  kept("real", "config.json");
  std::filesystem::create_directory_symlink("real", here / "out.tmp-belay-link12");
  std::ofstream(here / "out.tmp-belay-file12") << "a file";
  const int before = here.entries();
  {
    const model_export living(here.target);
    CHECK(here.entries() == before + 1);
    const pid_t other = forked([&] {
      export_to(here.target, 5);
      return 0;
    });
    CHECK(reaped(other) == 0);
    CHECK(here.entries() == before + 2);  // its export; the living one's folder
    CHECK(value_in(here.target) == 5);
    CHECK(!std::filesystem::exists(here / "out.tmp-belay-none"));
  }
  CHECK(here.entries() == before + 1);
  kept("out.tmp-belay-abc124", "");
  kept("out.tmp-belay-abc125", "model.safetensors.tmp-12-0");
  export_to(here.target, 6);
  CHECK(here.entries() == before);  // also the old one that was set aside, now that there is a newer one
  CHECK(std::filesystem::exists(here / "real/config.json"));
  CHECK(std::filesystem::exists(here / "out.tmp-backup/model.safetensors"));
}

TEST_CASE("Ctrl-C and SIGTERM to belay-run leave nothing; a kill of it, or of rank 0, what the next export sweeps") {
  for (const int number : {SIGINT, SIGTERM}) {
    const export_folder here;
    const exporting_ranks ranks(here);
    ::kill(ranks.pid(), number);
    CHECK(reaped(ranks.pid()) == 128 + number);
    check_cut(here, -1, false);
  }
  {
    const export_folder here;
    const exporting_ranks ranks(here);
    ::kill(ranks.pid(), SIGKILL);
    CHECK(reaped(ranks.pid()) == 1000 + SIGKILL);
    wait_for_owner(here);
    check_cut(here, -1, true);  // one, or none where the rank heard of its parent's end before it was killed
  }
  {
    const export_folder here;
    const exporting_ranks ranks(here);
    ::kill(ranks.rank(), SIGKILL);
    CHECK(reaped(ranks.pid()) == 128 + SIGKILL);
    CHECK(here.temporaries() == 1);
    check_cut(here, -1, true);
  }
}

// A rank of the case above.
TEST_CASE("what ends the process that forked the ranks is answered by the one that exports") {
  for (const int number : {SIGTERM, SIGHUP, SIGQUIT}) {
    const export_folder here;
    const std::string ready = here / "ready";
    REQUIRE(::mkfifo(ready.c_str(), 0600) == 0);
    const pid_t parent = forked([&] {
      ::alarm(0);
      for (const int each : {SIGTERM, SIGHUP, SIGQUIT}) ::signal(each, SIG_DFL);
      belay::host::processes{2}.run([&](belay::host::rank& rank) {
        std::optional<model_export> out;
        if (rank.number() == 0) {
          out.emplace(here.target);
          std::ofstream(ready) << ::getpid() << std::endl;
        }
        while (::pause() != 0) {
        }
        return 0;
      });
      return 98;
    });
    pid_t rank = -1;
    std::ifstream(ready) >> rank;
    std::filesystem::remove(ready);
    REQUIRE(here.temporaries() == 1);
    const std::string folder = std::filesystem::directory_iterator(here.path())->path();
    const belay::unique_fd held(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ::kill(parent, number);
    CHECK(reaped(parent) == 1000 + number);
    CHECK(::flock(held.get(), LOCK_EX) == 0);  // its owner has ended
    check_cut(here, -1, false);
  }
}

TEST_CASE("a forked child of a process that exports removes nothing") {
  const export_folder here;
  model_export out(here.target);
  out.fill(2);
  const pid_t child = forked([] {
    ::raise(SIGHUP);
    return 0;
  });
  CHECK(reaped(child) == 1000 + SIGHUP);
  CHECK(here.temporaries() == 1);
  out.commit();
  CHECK(value_in(here.target) == 2);
}

TEST_CASE("as an exporting rank" * doctest::skip()) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::signal(number, SIG_DFL);  // not the test framework's
  if (std::string(std::getenv("BELAY_RANK")) == "0") {
    model_export out(std::getenv("BELAY_TEST_EXPORT"));
    out.tensors.write<float>("model.norm.weight", 0, std::vector<float>(2, 2.0F));
    std::ofstream(std::getenv("BELAY_TEST_READY")) << ::getpid() << std::endl;
    while (true) ::pause();
  }
  while (true) ::pause();
}

#endif
