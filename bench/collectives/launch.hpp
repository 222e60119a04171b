// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How ranks come to be: threads of this process, its children, or processes that mpirun started. The rest of the
// benchmark takes any kind of rank.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "belay/backend/host/processes.hpp"
#include "belay/backend/host/world.hpp"
#include "collectives/mpi_peer.hpp"
#include "collectives/options.hpp"

namespace bench {

/// What the ranks leave behind for the process that started them: shared with children.
struct outcome {
  std::size_t wrong = 0;
};

class shared_outcome {
 public:
  shared_outcome()
      : memory_(::mmap(nullptr, sizeof(outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    new (memory_) outcome;
  }
  shared_outcome(const shared_outcome&) = delete;
  shared_outcome& operator=(const shared_outcome&) = delete;
  ~shared_outcome() { ::munmap(memory_, sizeof(outcome)); }
  [[nodiscard]] outcome& get() const { return *static_cast<outcome*>(memory_); }

 private:
  void* memory_;
};

/// Starts this very program under mpirun; returns only if that fails.
inline void become_mpirun(const options& what, char** argv) {
  std::vector<std::string> words{"mpirun", "-np", std::to_string(what.ranks)};
  if (what.oversubscribed())
    words.insert(words.end(), {"--oversubscribe", "--bind-to", "none"});
  else
    words.insert(words.end(), {"--bind-to", "core"});
  if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
  char self[4096];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self - 1);
  words.emplace_back(length > 0 ? std::string(self, static_cast<std::size_t>(length)) : std::string(argv[0]));
  for (char** word = argv + 1; *word != nullptr; ++word) words.emplace_back(*word);
  std::string line = "#";
  std::vector<char*> pointers;
  for (std::string& word : words) {
    line += ' ' + word;
    pointers.push_back(word.data());
  }
  pointers.push_back(nullptr);
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  ::execvp(pointers[0], pointers.data());
  std::fprintf(stderr, "mpirun: %s (Debian: apt-get install openmpi-bin libopenmpi-dev)\n", std::strerror(errno));
}

}  // namespace bench
