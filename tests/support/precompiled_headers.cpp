// Precompiles GoogleTest's headers for all tests (add_jforge_test).
int main() {}
