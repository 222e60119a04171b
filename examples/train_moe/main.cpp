// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// train_moe: a Mixtral-shaped language model on real text, over pipeline, expert and data parallel ranks.
//
//   micro-batch 0   stage 0  F B        each stage is `ep` ranks that share its experts;
//   micro-batch 1   stage 1   F B       `dp` such pipelines divide the micro-batches
#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>

#include "belay/train/launch.hpp"
#include "input/problem_text.hpp"
#include "train_moe/command_line.hpp"
#include "train_moe/session.hpp"

namespace {

// The same whether a rank threw it here, in a process that was forked, or in one of another launcher's.
int exit_code_of(belay::error_kind what) noexcept {
  if (what == belay::error_kind::plan) return 3;
  if (what == belay::error_kind::backend) return 4;
  return what == belay::error_kind::file || what == belay::error_kind::input ? 2 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not become so large is an error with its name
  int exit_code = 0;
  std::optional<train_moe::command_line> line;
  const auto fail = [&](const std::exception& error, int code) {
    if (!line || line->backend == train_moe::backend_kind::threads || belay::should_report(error)) {
      std::fprintf(stderr, "train_moe: %s\n", input::problem_text(error).c_str());
    }
    return code;
  };
  try {
    line = train_moe::parse(argc, argv, exit_code);
    return line ? train_moe::run_session(*line, argv) : exit_code;
  } catch (const train_moe::first_rank_tells& error) {
    return exit_code_of(error.kind());
  } catch (const belay::comm_error& error) {
    const int signal = error.about().signal;  // that has ended the rank, as a shell has it
    return fail(error, signal > 0 ? 128 + signal : exit_code_of(error.about().thrown));
  } catch (const std::exception& error) {
    return fail(error, exit_code_of(belay::kind_of(error)));
  }
}
