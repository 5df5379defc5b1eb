// The threads that share the library's work out among them.

#include <ctime>

#include "vector.h"

#ifdef QWEN_X86

extern "C" {

// The processor time that a team has had, in seconds. Each thread reads its own clock: of another's
// that runs the system tells what it had up to its last tick.
double qwen_team_seconds(int num_threads) {
  double seconds = 0;
#pragma omp parallel num_threads(num_threads) reduction(+ : seconds)
  {
    timespec spent{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    seconds += static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
  }
  return seconds;
}

}  // extern "C"

#endif  // QWEN_X86
