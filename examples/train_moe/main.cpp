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
#include "train_moe/command_line.hpp"
#include "train_moe/session.hpp"

int main(int argc, char** argv) {
  int exit_code = 0;
  std::optional<train_moe::command_line> line;
  const auto fail = [&](const std::exception& error, int code) {
    if (!line || line->backend == train_moe::backend_kind::threads || belay::should_report(error)) {
      std::fprintf(stderr, "train_moe: %s\n", belay::printable_what(error).c_str());
    }
    return code;
  };
  try {
    line = train_moe::parse(argc, argv, exit_code);
    return line ? train_moe::run_session(*line, argv) : exit_code;
  } catch (const belay::plan_refused& refusal) {
    return fail(refusal, 3);
  } catch (const belay::file_error& error) {
    return fail(error, 2);
  } catch (const belay::input_error& error) {
    return fail(error, 2);
  } catch (const belay::comm_error& error) {
    return fail(error, error.about().signal == SIGINT ? 128 + SIGINT : 1);
  } catch (const std::exception& error) {
    return fail(error, 1);
  }
}
